#include "rank/worker.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/limits.h"
#include "base/memory_file.h"
#include "model/subject_text.h"
#include "protocol/channel.h"

namespace distgrad {
namespace {

// Replies to short cases are sent together, since each write wakes the driver, which competes with
// the ranks for the cores.
constexpr std::size_t kFlushBytes = 64 << 10;
constexpr std::int64_t kFlushNs = 1'000'000;
// Lies between two looks at whether the other ranks are done.
constexpr auto kLook = std::chrono::microseconds(50);

constexpr std::size_t kOutputLimit = 64 << 10;

// Captures standard output and error in a file that the driver reads if this process dies. It is
// cleared between cases, so it always has what the current case has written.
class CapturedOutput {
 public:
  explicit CapturedOutput(UniqueFd file) : file_(std::move(file)) {
    dup2(file_.get(), STDOUT_FILENO);
    dup2(file_.get(), STDERR_FILENO);
    // Loses nothing in a crash, and keeps the order of lines.
    setvbuf(stdout, nullptr, _IOLBF, 0);
  }

  std::string take() {
    std::fflush(nullptr);
    std::string text = read_output(file_.get(), kOutputLimit);
    if (!text.empty()) clear_output(file_.get());
    return text;
  }

 private:
  UniqueFd file_;
};

RankError exception_text(const char* message, int rank) {
  return {ErrorKind::kException, rank, "", message};
}

class Worker {
 public:
  Worker(WorkerStart start, const WorkerFunctions& functions)
      : functions_(functions),
        role_(start.role),
        rank_(start.rank),
        world_size_(start.world_size),
        board_memory_(map_shared(start.board.get(), sizeof(Board))),
        board_(reinterpret_cast<Board*>(board_memory_.get())),
        slot_(board_->ranks[start.rank]),
        output_(std::move(start.output)),
        channel_(std::move(start.socket)) {
    if (functions_.start) functions_.start();
  }

  // Serves until the driver closes the socket, or an error. After an error the ranks are out of
  // step, and the driver replaces them.
  void serve() {
    while (std::optional<Frame> frame = next_frame()) {
      const Decoded<WorkRequest> request = decode_request(*frame);
      if (!request.value) {
        std::fprintf(stderr, "a request cannot be read: %s\n", request.error.c_str());
        return;
      }
      const WorkReply reply = answer(*request.value, *frame);
      const ExpectedValues* expected = request.value->expected.get();
      channel_.queue(encode(reply, expected ? &expected->payload : nullptr));
      const bool failed = reply.error || is_error(reply.what);
      if (failed || channel_.queued_bytes() >= kFlushBytes ||
          monotonic_ns() - flushed_ns_ > kFlushNs)
        flush();
      if (failed) return;
    }
  }

 private:
  static bool is_error(const AnyResult& what) {
    const auto* result = std::get_if<RankResult>(&what);
    return result && result->error;
  }

  void flush() {
    channel_.flush(Wait::kYes);
    flushed_ns_ = monotonic_ns();
  }

  // Returns nothing if the stream ends, or is not the protocol's.
  std::optional<Frame> next_frame() {
    for (;;) {
      NextFrame next = channel_.next();
      if (auto* frame = std::get_if<Frame>(&next)) return std::move(*frame);
      if (const auto* bad = std::get_if<BadFrame>(&next)) {
        std::fprintf(stderr, "the requests cannot be read: %s\n", bad->reason.c_str());
        return std::nullopt;
      }
      Channel::Received received = channel_.receive(Wait::kNo);
      if (received == Channel::Received::kNothing) {
        flush();
        received = channel_.receive(Wait::kYes);
      }
      if (received == Channel::Received::kClosed) return std::nullopt;
    }
  }

  WorkReply answer(const WorkRequest& request, const Frame& frame) {
    const auto* run_request = std::get_if<RunRequest>(&request.what);
    if (foreign_case_id_ != 0) wait_for_peers();
    const bool is_foreign =
        functions_.answer || (run_request && is_foreign_code(run_request->subject));
    foreign_case_id_ = run_request && is_foreign ? request.id : 0;
    WorkReply reply;
    reply.id = request.id;
    const std::int64_t started = monotonic_ns();
    slot_.step = -1;
    slot_.phase = Phase::kIdle;
    slot_.started_ns = started;
    slot_.case_id = request.id;  // last: whoever sees it sees the others
    try {
      if (functions_.answer)
        reply = functions_.answer(frame, slot_);
      else if (const auto* simulate = std::get_if<SimulateRequest>(&request.what))
        reply.what = functions_.simulate(*simulate);
      else
        reply.what = run(*run_request, request.expected.get());
    } catch (const std::exception& e) {
      fail(reply, e.what());
    } catch (...) {
      fail(reply, "something that is no std::exception was thrown");
    }
    if (!functions_.answer) reply.elapsed_ns = monotonic_ns() - started;
    reply.output = output_.take();
    if (functions_.take_entered) reply.entered = functions_.take_entered();
    slot_.phase = Phase::kReply;
    return reply;
  }

  // Waits until the other ranks are done with the last case, which ran users' code. A collective
  // that only some ranks make in it waits for the others. If those went on, it would take part in
  // their collective of the next case, whose verdict would be wrong.
  void wait_for_peers() {
    const auto is_through = [&](const RankSlot& peer) {
      const std::uint64_t id = peer.case_id;
      return id > foreign_case_id_ || (id == foreign_case_id_ && peer.phase == Phase::kReply);
    };
    for (int rank = 0; rank < world_size_; ++rank)
      while (!is_through(board_->ranks[rank])) {
        flush();
        std::this_thread::sleep_for(kLook);
      }
  }

  RankResult run(const RunRequest& request, const ExpectedValues* expected) {
    if (!run_case_) run_case_ = functions_.make_runner(rank_, world_size_, board_);
    return run_case_(request, expected);
  }

  void fail(WorkReply& reply, const char* message) {
    if (role_ == WorkerRole::kSimulator) {
      reply.what = Simulation{};
      reply.error = exception_text(message, -1);
    } else {
      RankResult result;
      result.error = exception_text(message, rank_);
      reply.what = std::move(result);
    }
  }

  const WorkerFunctions& functions_;
  WorkerRole role_;
  int rank_;
  int world_size_;
  MappedMemory board_memory_;
  Board* board_;
  RankSlot& slot_;
  CapturedOutput output_;
  Channel channel_;
  RunCase run_case_;
  std::int64_t flushed_ns_ = 0;
  std::uint64_t foreign_case_id_ = 0;  // of the last case, if the user's code ran in it
};

void name_process(const WorkerStart& start) {
  const std::string name =
      start.role == WorkerRole::kSimulator
          ? "dg simulator"
          : "dg rank " + std::to_string(start.rank) + "/" + std::to_string(start.world_size);
  prctl(PR_SET_NAME, name.c_str());
}

// Ranks wake each other's Gloo threads all the time. A woken thread would often take the core of
// the thread that writes to it and holds its connection's lock, and then spin on that lock, for
// half of all processor time and more if there are more ranks than cores. With this policy a thread
// waits until a core is free. If the system refuses it, everything works, but slower.
void wait_for_a_free_core() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace

// Gives simulators the whole limit; the ranks of a world share it. There is none for CUDA, which
// reserves addresses as if they were memory.
static void limit_memory(const WorkerStart& start) {
  if (start.transport.empty())
    limit_memory(given_memory_bytes() / static_cast<std::uint64_t>(std::max(1, start.world_size)));
}

int run_worker(WorkerStart start, const WorkerFunctions& functions) {
  limit_memory(start);
  signal(SIGINT, SIG_IGN);
  signal(SIGUSR1, SIG_IGN);  // the signal asks ranks in Python for their stack
  // Python does the same: a peer's death is an error of the connection, not a second death.
  signal(SIGPIPE, SIG_IGN);
  name_process(start);
  wait_for_a_free_core();
  int status = 0;
  try {
    auto* worker = new Worker(std::move(start), functions);  // leaked: see the declaration
    worker->serve();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    status = 1;
  }
  std::fflush(nullptr);
  return status;
}

void be_worker(WorkerStart start, const WorkerFunctions& functions) {
  _exit(run_worker(std::move(start), functions));
}

}  // namespace distgrad
