#include "fuzz/simulate_programs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <set>
#include <thread>

#include "base/child_process.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/memory_file.h"
#include "base/unique_fd.h"
#include "base/version.h"
#include "fuzz/generator.h"
#include "pool/worker_pool.h"

namespace distgrad {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kOutputLimit = 4096;
constexpr int kLoadSeconds = 30;  // for libtorch, in addition to a program's own time

// Describes one process, which has every `step`-th program.
struct Worker {
  pid_t pid = -1;  // -1: none
  UniqueFd pipe, output;
  std::string received;
  std::uint64_t next = 0;       // the first index not known to be done
  std::uint64_t done = 0;       // by processes before this one
  std::uint64_t done_here = 0;  // as this process reported
  bool tells_each = false;
  bool hangs = false;  // it was killed for that
  Clock::time_point heard{};
};

class Watch {
 public:
  Watch(const FuzzOptions& options, FuzzListener& listener)
      : options_(options),
        listener_(listener),
        end_(options.count ? options.first + *options.count
                           : std::numeric_limits<std::uint64_t>::max() - 1000) {}

  ~Watch() {
    for (Worker& worker : workers_)
      if (worker.pid > 0) {
        ::kill(worker.pid, SIGKILL);
        ::waitpid(worker.pid, nullptr, 0);
      }
  }

  FuzzTally run() {
    const auto cores =
        static_cast<std::uint64_t>(std::max(1U, std::thread::hardware_concurrency()));
    step_ = options_.count ? std::min(cores, *options_.count) : cores;
    workers_.resize(step_);
    for (std::uint64_t w = 0; w < step_; ++w) {
      workers_[w].next = options_.first + w;
      start(workers_[w]);
    }
    while (!interrupted_by() &&
           std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.pid > 0; }))
      turn();
    count();
    return tally_;
  }

 private:
  double seconds_left() const {
    return *options_.seconds - std::chrono::duration<double>(Clock::now() - started_).count();
  }

  void start(Worker& worker) {
    if (options_.seconds && seconds_left() <= 0) return;
    Json job = {{"seed", options_.seed},
                {"first", worker.next},
                {"step", step_},
                {"end", end_},
                {"seconds", options_.seconds ? seconds_left() : 0.0},
                {"each", worker.tells_each},
                {"world_sizes", options_.choices.world_sizes},
                {"objectives", options_.choices.objectives}};
    job["dtypes"] = job["kinds"] = Json::array();
    for (const DType dtype : options_.choices.dtypes) job["dtypes"].push_back(traits(dtype).name);
    for (const CollectiveKind kind : options_.kinds) job["kinds"].push_back(traits(kind).name);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("fuzz: cannot make a pipe");
    worker.pipe = UniqueFd(ends[0]);
    const UniqueFd other(ends[1]);
    worker.output = create_output_file();
    worker.received.clear();
    worker.done_here = 0;
    worker.hangs = false;
    worker.heard = Clock::now() + std::chrono::seconds(kLoadSeconds);
    worker.pid = start_child({{rank_executable(), "--simulated-fuzz", job.dump()},
                              {},
                              other.get(),
                              worker.output.get()});
  }

  void turn() {
    std::vector<pollfd> fds = {{interrupts_fd(), POLLIN, 0}};
    for (const Worker& worker : workers_)
      fds.push_back({worker.pid > 0 ? worker.pipe.get() : -1, POLLIN, 0});
    ::poll(fds.data(), fds.size(), 1000);
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      Worker& worker = workers_[w];
      if (fds[w + 1].revents != 0) receive(worker);
      worker.hangs = worker.pid > 0 && Clock::now() > worker.heard + std::chrono::duration<double>(
                                                                         options_.timeout_s);
      if (worker.hangs) ::kill(worker.pid, SIGKILL);
    }
    count();
    listener_.on_progress(tally_, found_.size());
  }

  void receive(Worker& worker) {
    char bytes[4096];
    const ssize_t n = ::read(worker.pipe.get(), bytes, sizeof bytes);
    if (n <= 0) return ended(worker);
    worker.heard = std::max(worker.heard, Clock::now());
    worker.received.append(bytes, static_cast<std::size_t>(n));
    for (std::size_t line; (line = worker.received.find('\n')) != std::string::npos;) {
      take(worker, Json::parse(worker.received.substr(0, line)));
      worker.received.erase(0, line + 1);
    }
  }

  void take(Worker& worker, const Json& line) {
    if (line.contains("done")) {
      worker.done_here = line["done"].get<std::uint64_t>();
      worker.next = line["next"].get<std::uint64_t>();
      return;
    }
    failed(line["failure"].get<std::uint64_t>(), line["rule"].get<std::string>(),
           line["text"].get<std::string>());
  }

  // If the process did not end by itself, finds the program at which it died, by reporting each,
  // and leaves it out.
  void ended(Worker& worker) {
    int status = 0;
    ::waitpid(worker.pid, &status, 0);
    worker.pid = -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const std::string said = read_output(worker.output.get(), kOutputLimit);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) throw SystemError("fuzz: " + said);
    worker.done += worker.done_here;
    if (worker.tells_each) {
      if (worker.next >= end_ || worker.next == died_at_)
        throw SystemError(
            fmt::format("fuzz: the simulator {}: {}", exit_description(status), said));
      died_at_ = worker.next;
      const std::string what = worker.hangs ? "hangs" : exit_description(status);
      failed(worker.next, std::string(name_of(worker.hangs ? ErrorKind::kHang : ErrorKind::kCrash)),
             fmt::format("the simulator {}\n{}", what, said));
      ++worker.done;
      worker.next += step_;
    }
    worker.tells_each = !worker.tells_each;
    if (worker.next < end_) start(worker);
  }

  void failed(std::uint64_t index, const std::string& rule, const std::string& text) {
    const bool is_wrong = rule == "adjoint" || rule == "objectives";
    ++(is_wrong ? tally_.mismatches : tally_.broken);
    if (!found_.insert(rule).second) return;
    FuzzFailure failure;
    failure.key = {"", rule, "", ""};
    failure.index = index;
    failure.is_broken = !is_wrong;
    failure.text = text;
    failure.scenario["note"] =
        fmt::format("found by distgrad fuzz {} --simulate --seed {}, program {}", kVersion,
                    options_.seed, index);
    fuzz::Choices choices = options_.choices;
    for (const CollectiveTraits& kind : kCollectives)
      if (!options_.kinds.empty() && std::find(options_.kinds.begin(), options_.kinds.end(),
                                               kind.kind) == options_.kinds.end())
        choices.offers[static_cast<std::size_t>(kind.kind)].ops = {};
    const auto program = fuzz::draw_program(choices, options_.seed, index);
    for (const auto& [key, value] : program.items()) failure.scenario[key] = value;
    listener_.on_failure(failure);
  }

  void count() {
    tally_.drawn = 0;
    for (const Worker& worker : workers_) tally_.drawn += worker.done + worker.done_here;
    tally_.programs = static_cast<long>(tally_.drawn);
    tally_.matches = tally_.programs - tally_.mismatches - tally_.broken;
  }

  const FuzzOptions& options_;
  FuzzListener& listener_;
  const std::uint64_t end_;
  const Clock::time_point started_ = Clock::now();
  std::uint64_t step_ = 1;
  std::uint64_t died_at_ = std::numeric_limits<std::uint64_t>::max();
  std::vector<Worker> workers_;
  std::set<std::string> found_;
  FuzzTally tally_;
};

}  // namespace

FuzzTally simulate_programs(const FuzzOptions& options, FuzzListener& listener) {
  return Watch(options, listener).run();
}

}  // namespace distgrad
