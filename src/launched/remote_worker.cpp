#include "launched/remote_worker.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "pool/rank_sight.h"

namespace distgrad {
namespace {

// The board cannot notify, so we look at it. What others wait for follows shortly after something
// else; during a long case we look seldom.
constexpr std::int64_t kShortestNs = 100'000, kLongestNs = 5'000'000;
constexpr std::int64_t kReportNs = 250'000'000;
constexpr std::size_t kOutputTail = 64 << 10;

UniqueFd new_board() {
  UniqueFd file = create_memory_file("distgrad-board");
  if (ftruncate(file.get(), sizeof(Board)) != 0) throw SystemError("no memory for the board");
  return file;
}

}  // namespace

RemoteWorker::RemoteWorker(std::uint64_t id, ZygoteProcess& zygote, int rank, int world_size,
                           const std::string& exec, Say say)
    : RemoteWorker(id, zygote, rank, world_size, exec, std::move(say),
                   std::make_shared<const UniqueFd>(new_board()), make_socket_pair()) {}

RemoteWorker::RemoteWorker(std::uint64_t id, ZygoteProcess& zygote, int rank, int world_size,
                           const std::string& exec, Say say, std::shared_ptr<const UniqueFd> board,
                           std::pair<UniqueFd, UniqueFd> sockets)
    : id_(id),
      zygote_(zygote),
      say_(std::move(say)),
      board_(map_shared(board->get(), sizeof(Board))),
      watch_(board_, rank, world_size),
      output_(std::make_shared<const UniqueFd>(create_output_file())),
      data_(std::move(sockets.first)) {
  name_ = zygote.fork_worker({0, WorkerRole::kRank, rank, world_size, exec},
                             std::move(sockets.second), board, output_);
}

void RemoteWorker::request(std::string header, std::span<const double> payload) {
  if (!is_open_) return;
  data_.queue(make_frame(header, {&payload, 1}));
  data_.flush(Wait::kNo);
  if (unanswered_++ == 0) next_report_ns_ = monotonic_ns() + kReportNs;
  interval_ns_ = kShortestNs;
  next_look_ns_ = 0;
}

void RemoteWorker::close() {
  if (!is_open_) return;
  is_open_ = false;
  data_ = Channel(UniqueFd());
}

void RemoteWorker::take_peers(const BoardPatches& patches) {
  apply_public_part(*reinterpret_cast<Board*>(board_.get()), patches);
  interval_ns_ = kShortestNs;  // the rank may have waited for this
  next_look_ns_ = 0;
}

void RemoteWorker::on_forked(pid_t pid) {
  pid_ = pid;
  say_({"forked", {static_cast<std::int64_t>(id_)}, ""});
}

void RemoteWorker::on_exited(int wait_status) {
  pid_ = 0;
  if (is_open_) exchange();  // takes what it said before it ended
  send_board();
  send_output();
  say_({"exited", {static_cast<std::int64_t>(id_), wait_status}, ""});
}

void RemoteWorker::exchange() {
  if (!is_open_) return;
  data_.flush(Wait::kNo);
  Channel::Received received;
  while ((received = data_.receive(Wait::kNo)) == Channel::Received::kSome) {
    send_board();  // before the replies: who has them then has what the rank wrote before
    for (NextFrame next = data_.next(); !std::holds_alternative<NoFrameYet>(next);
         next = data_.next()) {
      auto* frame = std::get_if<Frame>(&next);
      // Passes on what is no frame, as the driver has to say what the rank did.
      if (!frame) {
        say_({"data",
              {static_cast<std::int64_t>(id_)},
              "not a frame: " + std::get<BadFrame>(next).reason});
        received = Channel::Received::kClosed;
        break;
      }
      --unanswered_;
      say_({"data",
            {static_cast<std::int64_t>(id_)},
            std::move(frame->header),
            frame->payload,
            frame->keeper});
    }
    if (received == Channel::Received::kClosed) break;
  }
  if (received != Channel::Received::kClosed) return;
  is_open_ = false;
  send_board();
  send_output();
  say_({"closed", {static_cast<std::int64_t>(id_)}, ""});
}

std::int64_t RemoteWorker::watch(std::int64_t now) {
  if (unanswered_ <= 0 || !is_open_) return std::numeric_limits<std::int64_t>::max();
  if (now >= next_look_ns_) {
    interval_ns_ = send_board() ? kShortestNs : std::min(2 * interval_ns_, kLongestNs);
    next_look_ns_ = now + interval_ns_;
  }
  if (now >= next_report_ns_) {
    next_report_ns_ = now + kReportNs;
    send_output();
    send_seen(false, "");
  }
  return std::min(next_look_ns_, next_report_ns_);
}

void RemoteWorker::look() {
  send_board();
  const std::string at = pid_ > 1 ? place_in_stack(stack_of(pid_, output_->get())) : "";
  send_output();
  send_seen(true, at);
}

bool RemoteWorker::send_board() {
  const BoardPatches changes = watch_.changes();
  if (!changes.empty()) say_({"board", {static_cast<std::int64_t>(id_)}, changes});
  return !changes.empty();
}

void RemoteWorker::send_output() {
  const off_t position = lseek(output_->get(), 0, SEEK_CUR);
  if (position == reported_output_) return;
  reported_output_ = position;
  say_({"output", {static_cast<std::int64_t>(id_)}, read_output(output_->get(), kOutputTail)});
}

void RemoteWorker::send_seen(bool looked, const std::string& at) {
  const char state = pid_ > 1 ? process_state(pid_) : '\0';
  const std::int64_t waited = pid_ > 1 ? waited_for_core_ns(pid_) : 0;
  say_({"seen", {static_cast<std::int64_t>(id_), state, waited, looked}, at});
}

}  // namespace distgrad
