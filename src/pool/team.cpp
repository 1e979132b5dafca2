#include "pool/team.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "pool/rank_sight.h"
#include "pool/remedies.h"
#include "pool/stalled.h"

namespace distgrad {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1000 * kMillisecond;

constexpr std::size_t kWindow = 64;          // cases sent and not answered
constexpr std::size_t kSimulatorWindow = 8;  // less, since several simulators share the work
constexpr std::size_t kWindowBytes = 64 << 20;

// Gives the time that other ranks have to report their own error once one rank has failed, since
// the first to report need not be the cause.
constexpr std::int64_t kGraceNs = 200 * kMillisecond;
// Lies between the end of a rank's sockets and the zygote's report.
constexpr std::int64_t kExitReportNs = 2 * kSecond;
constexpr std::int64_t kLookNs = 100 * kMillisecond;
// Give the times that ranks may wait for each other, or for a stopped one, before they count as
// stuck.
constexpr std::int64_t kDeadlockNs = 300 * kMillisecond;
constexpr std::int64_t kStoppedNs = 1500 * kMillisecond;
// If the machine has no core for the ranks, a case may take up to this many times its time.
constexpr int kMostPatience = 5;
// Limits the import of the user's code; builds of extensions take minutes.
constexpr std::int64_t kLoadNs = 900 * kSecond;

constexpr std::size_t kOutputTail = 64 << 10;

std::size_t inputs_with_gradients(const Program& program) {
  return static_cast<std::size_t>(std::count_if(program.inputs.begin(), program.inputs.end(),
                                                [](const Input& i) { return i.requires_grad; }));
}

std::size_t reported_steps(const Program& program) {
  return static_cast<std::size_t>(std::count_if(program.steps.begin(), program.steps.end(),
                                                [](const Step& s) { return s.is_reported(); }));
}

std::size_t collective_steps(const Program& program) {
  return static_cast<std::size_t>(
      std::count_if(program.steps.begin(), program.steps.end(),
                    [](const Step& s) { return s.collective() != nullptr; }));
}

// Returns what is wrong with a driven call's reply, which has one objective and no loss, or "".
std::string misfit_of_driven(const Simulation& simulation) {
  if (simulation.invalid ||
      (simulation.gradients.size() == 1 && simulation.gradients[0].size() == 1))
    return {};
  return "not the gradient of one operand";
}

// An empty answer is right, since some programs cannot be observed.
std::string misfit_of_observed(const RankResult& result, const Program& program) {
  if (!result.observed.empty() && result.observed.size() != collective_steps(program))
    return fmt::format("{} observed calls of {}", result.observed.size(),
                       collective_steps(program));
  if (!result.shares.empty() && result.shares.size() != inputs_with_gradients(program))
    return fmt::format("{} shares for {} inputs", result.shares.size(),
                       inputs_with_gradients(program));
  return {};
}

std::string misfit(const Simulation& simulation, int world_size, std::size_t objectives) {
  if (simulation.invalid) return {};
  if (simulation.losses.size() != static_cast<std::size_t>(world_size))
    return fmt::format("{} losses for {} ranks", simulation.losses.size(), world_size);
  if (simulation.gradients.size() != objectives)
    return fmt::format("gradients of {} objectives, not {}", simulation.gradients.size(),
                       objectives);
  return {};
}

// Returns why the reply cannot answer the request, or "". Later stages index one by the other.
std::string misfit(const Job& job, int rank, const WorkReply& reply) {
  const auto* simulate = std::get_if<SimulateRequest>(&job.request);
  if (simulate) {
    const auto* simulation = std::get_if<Simulation>(&reply.what);
    if (!simulation) return "the reply to a simulation is a rank's";
    if (reply.error) return {};
    if (simulate->drive) return misfit_of_driven(*simulation);
    return misfit(*simulation, job.program().world_size, simulate->weights.size());
  }
  const auto* result = std::get_if<RankResult>(&reply.what);
  if (!result) return "the reply of a rank is a simulation";
  if (result->error || !result->skipped.empty()) return {};
  if (result->gradients.size() != inputs_with_gradients(job.program()))
    return fmt::format("{} gradients for {} inputs", result->gradients.size(),
                       inputs_with_gradients(job.program()));
  if (result->steps.size() != reported_steps(job.program()))
    return fmt::format("values of {} steps, not {}", result->steps.size(),
                       reported_steps(job.program()));
  if (std::string wrong = misfit_of_observed(*result, job.program()); !wrong.empty()) return wrong;
  const auto& request = std::get<RunRequest>(job.request);
  if (!request.measured.empty() && rank == 0) {
    if (!result->measured) return "no measured truth";
    return misfit(*result->measured, job.program().world_size, request.measured.size());
  }
  return {};
}

}  // namespace

Team::Team(ZygoteProcess& zygote, TeamKind kind, double begin_s)
    : zygote_(zygote), kind_(kind), begin_ns_(static_cast<std::int64_t>(begin_s * kSecond)) {
  memory_kills_before_ = out_of_memory_kills();
  if (kind.world_size > kMaxRanks)
    throw SystemError(fmt::format("at most {} ranks can run", kMaxRanks));
  auto board = std::make_shared<const UniqueFd>(create_memory_file("distgrad-board"));
  if (ftruncate(board->get(), sizeof(Board)) != 0) throw SystemError("no memory for the board");
  board_ = map_shared(board->get(), sizeof(Board));
  for (int rank = 0; rank < kind.world_size; ++rank) {
    auto [ours, theirs] = make_socket_pair();
    auto output = std::make_shared<const UniqueFd>(create_output_file());
    const int place = kind.places.empty() ? -1 : kind.places[static_cast<std::size_t>(rank)];
    const std::uint64_t name =
        zygote.fork_worker({0, kind.role, rank, kind.world_size, kind.transport, place},
                           std::move(theirs), board, output);
    workers_.push_back(
        {name, rank, Channel(std::move(ours)), std::move(output), 0, true, 0, {}, 0, {}, {}, 0, 0});
  }
}

Team::~Team() {
  for (const Worker& worker : workers_)
    if (!worker.wait_status && (!in_flight_.empty() || is_broken_))
      zygote_.kill_worker(worker.name);
}

bool Team::has_room() const {
  if (errors_ > 0 || is_broken_) return false;
  for (const Worker& worker : workers_)
    if (!worker.is_open) return false;
  if (!in_flight_.empty() && in_flight_.back().job->is_second_run) return false;
  const std::size_t window = kind_.role == WorkerRole::kSimulator ? kSimulatorWindow : kWindow;
  return in_flight_.size() < window && weight_in_flight_ < kWindowBytes;
}

void Team::send(std::unique_ptr<Job> job) {
  InFlight& sent = in_flight_.emplace_back();
  sent.id = ++last_id_;
  sent.replies.resize(workers_.size());
  if (!zygote_.takes_expected()) job->expected.reset();
  const SharedFrame frame = encode_request(sent.id, job->request, job->expected.get());
  sent.job = std::move(job);
  sent.weight = frame->weight();
  sent.sent_ns = monotonic_ns();
  weight_in_flight_ += sent.weight;
  for (Worker& worker : workers_)
    if (worker.is_open) worker.channel.queue(frame);
  if (in_flight_.size() == 1) next_look_ns_ = sent.sent_ns + kLookNs;
}

void Team::append_poll_fds(std::vector<pollfd>& fds) const {
  for (const Worker& worker : workers_) {
    const short events = worker.channel.has_queued() ? POLLIN | POLLOUT : POLLIN;
    fds.push_back({worker.is_open ? worker.channel.fd() : -1, events, 0});
  }
}

void Team::flush() {
  for (Worker& worker : workers_)  // a closed one is noticed when it is read
    if (worker.is_open && worker.channel.has_queued()) worker.channel.flush(Wait::kNo);
}

void Team::exchange(std::span<const pollfd> ready) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (ready[i].fd < 0 || !ready[i].revents) continue;
    if (ready[i].revents & POLLOUT) workers_[i].channel.flush(Wait::kNo);
    if (ready[i].revents & ~POLLOUT) receive(workers_[i]);
  }
}

bool Team::on_event(const ZygoteEvent& event) {
  const auto found = [&](std::uint64_t name) {
    return std::find_if(workers_.begin(), workers_.end(),
                        [&](const Worker& w) { return w.name == name; });
  };
  if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    const auto worker = found(exited->worker);
    if (worker == workers_.end()) return false;
    worker->wait_status = exited->wait_status;
    if (worker->is_open) receive(*worker);  // what it said before it ended
    // Its socket need not end: a process that it started may hold the other end.
    if (worker->is_open) worker->closed_ns = monotonic_ns();
    worker->is_open = false;
    next_look_ns_ = 0;
    return true;
  }
  if (const auto* forked = std::get_if<WorkerForked>(&event)) {
    const auto worker = found(forked->worker);
    if (worker == workers_.end()) return false;
    if (!zygote_.is_elsewhere()) worker->pid = static_cast<pid_t>(forked->pid);
    return true;
  }
  if (const auto* seen = std::get_if<WorkerSeen>(&event)) {
    const auto worker = found(seen->worker);
    if (worker == workers_.end()) return false;
    worker->seen = *seen;
    return true;
  }
  if (const auto* failed = std::get_if<ForkFailed>(&event)) {
    if (found(failed->worker) == workers_.end()) return false;
    throw SystemError("cannot start a rank: " + failed->message);
  }
  return false;
}

Team::InFlight* Team::in_flight(std::uint64_t id) {
  if (in_flight_.empty() || id < in_flight_.front().id || id > in_flight_.back().id) return nullptr;
  return &in_flight_[id - in_flight_.front().id];
}

void Team::receive(Worker& worker) {
  // Reads everything that is there, since a closed socket must not hide what was said before.
  Channel::Received received;
  while ((received = worker.channel.receive(Wait::kNo)) == Channel::Received::kSome) {
    for (;;) {
      NextFrame next = worker.channel.next();
      if (std::holds_alternative<NoFrameYet>(next)) break;
      const auto* frame = std::get_if<Frame>(&next);
      const InFlight* answered = in_flight(worker.answered + 1);
      const ExpectedValues* expected =
          answered && answered->job ? answered->job->expected.get() : nullptr;
      Decoded<WorkReply> reply =
          frame ? decode_reply(*frame, expected ? &expected->payload : nullptr)
                : Decoded<WorkReply>{std::nullopt, std::get<BadFrame>(next).reason};
      if (!reply.value) {
        RankError error{ErrorKind::kCrash, worker.rank, "", "sent a corrupt reply: " + reply.error};
        fail_worker(worker, worker.answered + 1, std::move(error));
        worker.is_open = false;
        return;
      }
      take_reply(worker, std::move(*reply.value));
      if (!worker.is_open) return;
    }
  }
  if (received == Channel::Received::kClosed) {
    worker.is_open = false;
    worker.closed_ns = monotonic_ns();
    next_look_ns_ = 0;
  }
}

void Team::take_reply(Worker& worker, WorkReply reply) {
  InFlight* answered = in_flight(reply.id);
  std::string wrong;
  if (!answered || reply.id != worker.answered + 1)
    wrong = fmt::format("it answers request {}", reply.id);
  else
    wrong = misfit(*answered->job, worker.rank, reply);
  if (!wrong.empty()) {
    fail_worker(worker, worker.answered + 1,
                {ErrorKind::kCrash, worker.rank, "", "sent a wrong reply: " + wrong});
    worker.is_open = false;
    return;
  }
  worker.answered = reply.id;
  const auto* result = std::get_if<RankResult>(&reply.what);
  const std::optional<RankError> error = result ? result->error : reply.error;
  if (auto* simulation = std::get_if<Simulation>(&reply.what); simulation && simulation->invalid)
    simulation->invalid->message = with_remedy(std::move(simulation->invalid->message));
  answered->replies[worker.rank] = std::move(reply);
  ++answered->answered;
  if (failing_since_ns_ != 0) next_look_ns_ = 0;  // the failure may wait for this reply
  if (error) return fail_worker(worker, worker.answered, *error);
  if (answered->answered == workers_.size()) compare_entered(*answered);
}

// Checks a case that all have answered. Ranks that were not in the same collectives are out of
// step, even though nothing broke.
void Team::compare_entered(InFlight& done) {
  std::vector<std::vector<NotedCall>> entered;
  for (auto& reply : done.replies) entered.push_back(std::move(reply->entered));
  std::optional<RankError> error = silent_difference(done.job->program(), entered);
  if (error)
    fail_worker(workers_[static_cast<std::size_t>(error->rank)], done.id, std::move(*error));
}

// Keeps the error of the earliest case: replies to later ones may arrive in the same read.
void Team::fail_worker(Worker& worker, std::uint64_t id, RankError error) {
  if (worker.error && worker.error_id <= id) return;
  error.rank = reported_rank(worker);
  error.message = with_remedy(std::move(error.message));
  worker.error = std::move(error);
  worker.error_id = id;
  worker.error_order = ++errors_;
  if (failing_since_ns_ == 0) failing_since_ns_ = monotonic_ns();
  next_look_ns_ = 0;
}

std::vector<Completion> Team::take_completed() {
  std::vector<Completion> completed;
  while (!in_flight_.empty()) {
    InFlight& first = in_flight_.front();
    const bool failed = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
      return w.error && w.error_id == first.id;
    });
    if (failed || first.answered < workers_.size()) break;
    completed.push_back(completion(first, std::nullopt));
    weight_in_flight_ -= first.weight;
    in_flight_.pop_front();
  }
  return completed;
}

Completion Team::completion(InFlight& done, std::optional<RankError> error) {
  Completion completion;
  completion.ticket = done.job->ticket;
  if (kind_.role == WorkerRole::kSimulator) {
    SimulationRun run;
    run.error = std::move(error);
    if (auto& reply = done.replies[0]) {
      run.simulation = std::move(std::get<Simulation>(reply->what));
      run.output = std::move(reply->output);
      run.elapsed_s = static_cast<double>(reply->elapsed_ns) * 1e-9;
      run.payload = std::move(reply->payload);
    } else {
      run.output = read_output(workers_[0].output->get(), kOutputTail);
    }
    completion.result = std::move(run);
    return completion;
  }
  DistributedRun run;
  run.error = std::move(error);
  std::int64_t elapsed =
      run.error ? monotonic_ns() - (done.began_ns() ? done.began_ns() : done.sent_ns) : 0;
  for (Worker& worker : workers_) {
    if (auto& reply = done.replies[worker.rank]) {
      run.ranks.push_back(std::move(std::get<RankResult>(reply->what)));
      run.output.push_back(std::move(reply->output));
      elapsed = std::max(elapsed, reply->elapsed_ns);
    } else {
      run.ranks.emplace_back();
      run.output.push_back(read_output(worker.output->get(), kOutputTail));
    }
  }
  run.elapsed_s = static_cast<double>(elapsed) * 1e-9;
  completion.result = std::move(run);
  return completion;
}

RankPlace Team::place(const Worker& worker, const InFlight& in_flight) const {
  const RankSlot& slot = this->slot(worker.rank);
  const std::uint64_t current = slot.case_id;
  RankPlace place{reported_rank(worker), RankPlace::State::kNotBegun, slot.step, slot.phase};
  if (worker.answered >= in_flight.id || current > in_flight.id ||
      (current == in_flight.id && place.phase == Phase::kReply))
    place.state = RankPlace::State::kFinished;
  else if (current == in_flight.id)
    place.state = RankPlace::State::kRunning;
  place.call = read_note(calls(worker.rank));
  // It now waits in a call of a later case.
  if (place.call && current > in_flight.id) place.call->waits = false;
  return place;
}

bool Team::is_finished_by_all(const InFlight& in_flight) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return place(worker, in_flight).state == RankPlace::State::kFinished;
  });
}

// Returns the oldest case that some worker has not finished. A worker is believed to have finished
// cases that it has not answered yet, since replies are sent together, but only for as long as a
// case takes.
Team::InFlight* Team::oldest_unfinished() {
  const auto oldest = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [&](const InFlight& f) { return !is_finished_by_all(f); });
  if (oldest != in_flight_.end()) return &*oldest;
  return in_flight_.empty() ? nullptr : &in_flight_.front();
}

void Team::look_at_clock(InFlight& in_flight, std::int64_t now) {
  const bool begun = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.answered >= in_flight.id || slot(worker.rank).case_id >= in_flight.id;
  });
  if (begun && in_flight.started_ns == 0) {
    in_flight.started_ns = now;
    in_flight.waited_for_core_ns = time_without_core_ns(in_flight);
  }
  if (!is_loading(in_flight)) return;
  in_flight.loading_ns = now;
  if (in_flight.first_loading_ns == 0) in_flight.first_loading_ns = now;
}

// Reports ranks that still connect, with too few cores for it.
RankError Team::too_many_ranks(double timeout_s) const {
  return {ErrorKind::kHang, -1, "",
          fmt::format("{} ranks were not connected with each other after {:g} s: fewer ranks, more "
                      "time (--timeout), or --simulate, which starts none",
                      kind_.world_size, timeout_s)};
}

// Returns how long all workers have waited for a core since the case began. The case may take so
// much longer, whoever waited for whom.
std::int64_t Team::time_without_core_ns(const InFlight& in_flight) const {
  std::int64_t total = 0;
  for (const Worker& worker : workers_)
    if (!worker.wait_status) total += waited_for_core_ns(worker);
  return std::max<std::int64_t>(0, total - in_flight.waited_for_core_ns);
}

// Says how long a case was given, and why, if that is clearly more than its time.
std::string Team::patience_text(const InFlight& in_flight, std::int64_t now) const {
  const std::int64_t began = in_flight.began_ns();
  const double given_s = began ? static_cast<double>(now - began) * 1e-9 : 0;
  if (given_s < in_flight.job->timeout_s + 1) return "";
  return fmt::format("; it was given {:.0f} s, as its processes waited {:.0f} s for a core",
                     given_s, static_cast<double>(time_without_core_ns(in_flight)) * 1e-9);
}

// Returns the oldest unfinished case, if its time is up. Its clock starts when its first worker
// begins.
Team::InFlight* Team::overdue(std::int64_t now) {
  for (InFlight& f : in_flight_) look_at_clock(f, now);
  InFlight* oldest = oldest_unfinished();
  if (!oldest) return nullptr;
  // The pool decides how long that may take: the last of a launcher's ranks may come after minutes.
  if (!zygote_.is_ready()) {
    next_look_ns_ = now + kLookNs;
    return nullptr;
  }
  const std::int64_t started = oldest->began_ns();
  constexpr double kLongest = 1e9;  // seconds; more would not fit in nanoseconds
  const auto limit = static_cast<std::int64_t>(std::min(oldest->job->timeout_s, kLongest) * 1e9);
  // Before its first case a worker must be forked and load; later cases begin as soon as the last
  // one is done.
  std::int64_t deadline =
      started ? started + limit : std::max(oldest->sent_ns, zygote_.ready_ns()) + begin_ns_ + limit;
  if (now >= deadline)
    deadline +=
        std::min(time_without_core_ns(*oldest), (kMostPatience - 1) * std::min(limit, kLoadNs));
  if (now >= deadline) return oldest;
  next_look_ns_ = std::min(now + kLookNs, deadline);
  return nullptr;
}

bool Team::is_loading(const InFlight& in_flight) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    const RankSlot& slot = this->slot(worker.rank);
    return worker.is_open && worker.answered < in_flight.id && slot.case_id == in_flight.id &&
           slot.phase == Phase::kLoad;
  });
}

Team::InFlight* Team::loading_for_too_long(std::int64_t now) {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& f) {
    const double limit = std::max(static_cast<double>(kLoadNs), f.job->timeout_s * 1e9);
    return f.first_loading_ns != 0 && is_loading(f) &&
           static_cast<double>(now - f.first_loading_ns) > limit;
  });
  return found == in_flight_.end() ? nullptr : &*found;
}

std::vector<RankPlace> Team::places(const InFlight& in_flight) const {
  std::vector<RankPlace> places;
  for (const Worker& worker : workers_) places.push_back(place(worker, in_flight));
  return places;
}

// Returns the places, with what can be seen of the ranks that the others wait for.
std::vector<RankPlace> Team::places_seen(const InFlight& in_flight) const {
  std::vector<RankPlace> places = this->places(in_flight);
  std::vector<const Worker*> awaited;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const RankPlace& place = places[i];
    const bool waits = place.call && place.call->waits;
    if (place.state == RankPlace::State::kRunning && !waits && !workers_[i].wait_status)
      awaited.push_back(&workers_[i]);
  }
  look_at(awaited, places);
  return places;
}

void Team::look_at(const std::vector<const Worker*>& workers,
                   std::vector<RankPlace>& places) const {
  std::map<std::uint64_t, WorkerSeen> seen;
  if (zygote_.is_elsewhere()) {
    std::vector<std::uint64_t> names;
    for (const Worker* worker : workers) names.push_back(worker->name);
    seen = zygote_.look(names);
  }
  for (const Worker* worker : workers) {
    RankPlace& place = places[static_cast<std::size_t>(worker->rank)];
    std::string at;
    char what = '\0';
    if (const auto found = seen.find(worker->name); found != seen.end()) {
      what = found->second.state;
      if (place.call) at = found->second.at.value_or("");
    } else if (worker->pid > 1) {
      what = process_state(worker->pid);
      if (place.call) at = place_in_stack(stack_of(worker->pid, worker->output->get()));
    }
    const std::string state = state_text(what);
    if (!state.empty()) at += (at.empty() ? "" : ", ") + state;
    place.seen_at = std::move(at);
  }
}

char Team::state_of(const Worker& worker) const {
  if (zygote_.is_elsewhere()) return worker.seen.state;
  return worker.pid > 1 ? process_state(worker.pid) : '\0';
}

std::int64_t Team::waited_for_core_ns(const Worker& worker) const {
  if (zygote_.is_elsewhere()) return worker.seen.waited_ns;
  return worker.pid > 1 ? distgrad::waited_for_core_ns(worker.pid) : 0;
}

// Reports ranks that can never go on. They count as stuck if nothing has changed for a while.
std::optional<RankError> Team::deadlock(const InFlight& in_flight, std::int64_t now) {
  const std::vector<RankPlace> places = this->places(in_flight);
  bool stopped = false;
  for (const int rank : awaited_ranks(places)) {
    const Worker& worker = workers_[static_cast<std::size_t>(rank)];
    stopped = stopped || state_of(worker) == 'T';
  }
  std::string state;
  if (stopped || is_deadlock(in_flight.job->program(), places))
    for (const RankPlace& p : places)
      state += fmt::format("{}:{}:{}:{} ", in_flight.id, static_cast<int>(p.state),
                           p.call ? p.call->version : 0, p.call && p.call->waits);
  if (state.empty() || state != last_state_) {
    last_state_ = state;
    stuck_since_ns_ = now;
    return std::nullopt;
  }
  if (now - stuck_since_ns_ < (stopped ? kStoppedNs : kDeadlockNs)) return std::nullopt;
  const std::vector<RankPlace> seen = places_seen(in_flight);
  std::optional<RankError> error = difference_error(in_flight.job->program(), seen);
  if (!error) error = absence_error(in_flight.job->program(), seen);
  if (error) error->message += "; they can never go on";
  return error;
}

// Replaces an error that ranks die of, or hear of, while they differ in a collective: the
// difference is its cause.
RankError Team::of_difference(const InFlight& in_flight, RankError error) const {
  if (error.kind == ErrorKind::kException && !is_echo(error)) return error;
  if (error.kind == ErrorKind::kSubject || error.kind == ErrorKind::kDesync) return error;
  std::optional<RankError> difference =
      difference_error(in_flight.job->program(), places(in_flight));
  if (!difference) return error;
  difference->message += fmt::format("; rank {}: {}", error.rank, error.message);
  return *difference;
}

std::optional<Team::Loading> Team::loading() const {
  if (in_flight_.empty()) return std::nullopt;
  const auto* request = std::get_if<RunRequest>(&in_flight_.front().job->request);
  const InFlight& first = in_flight_.front();
  if (!request || first.first_loading_ns == 0 || !is_loading(first)) return std::nullopt;
  return Loading{request->subject,
                 static_cast<double>(monotonic_ns() - first.first_loading_ns) * 1e-9};
}

// Makes an error of a worker whose socket is closed and which has reported none, once its end is
// reported.
void Team::judge_dead_worker(Worker& worker, std::int64_t now) {
  if (worker.error || worker.is_open) return;
  if (!worker.wait_status && now < worker.closed_ns + kExitReportNs) {
    next_look_ns_ = worker.closed_ns + kExitReportNs;
    return;
  }
  std::string how =
      worker.wait_status ? exit_description(*worker.wait_status) : "closed its connection";
  const bool was_killed = worker.wait_status && WIFSIGNALED(*worker.wait_status) &&
                          WTERMSIG(*worker.wait_status) == SIGKILL;
  if (was_killed && out_of_memory_kills() > memory_kills_before_)
    how += ", as the machine had no memory left; --max-memory makes it an error of the rank";
  // The case is the one on the board, unless that one is answered.
  const std::uint64_t id = std::max(slot(worker.rank).case_id.load(), worker.answered + 1);
  RankError error{ErrorKind::kCrash, worker.rank, "", how};
  if (const InFlight* running = in_flight(id))
    error = crash_error(running->job->program(), place(worker, *running), how,
                        read_output(worker.output->get(), kOutputTail));
  fail_worker(worker, id, std::move(error));
}

std::optional<Team::Failure> Team::find_failure() {
  const std::int64_t now = monotonic_ns();
  if (now < next_look_ns_) return std::nullopt;
  next_look_ns_ = now + kLookNs;
  for (Worker& worker : workers_) judge_dead_worker(worker, now);
  if (failing_since_ns_ != 0) return failure_of_workers(now);
  if (InFlight* stuck = loading_for_too_long(now)) {
    const double limit_s = std::max(static_cast<double>(kLoadNs / kSecond), stuck->job->timeout_s);
    return make_failure(stuck,
                        {ErrorKind::kSubject, -1, "",
                         fmt::format("its import or setup takes more than {:g} s", limit_s)});
  }
  if (InFlight* late = overdue(now)) {
    const std::vector<RankPlace> places = places_seen(*late);
    const bool too_many =
        late->id == 1 && most_still_connect(late->job->program(), places) &&
        static_cast<double>(time_without_core_ns(*late)) * 1e-9 > late->job->timeout_s;
    RankError error = too_many ? too_many_ranks(late->job->timeout_s)
                               : hang_error(late->job->program(), places, late->job->timeout_s);
    if (kind_.role == WorkerRole::kSimulator)
      error.message = fmt::format("the simulation was not done after {:g} s", late->job->timeout_s);
    error.message += patience_text(*late, now);
    Failure failure = make_failure(late, std::move(error));
    failure.too_many_ranks = too_many;
    return failure;
  }
  if (InFlight* oldest = kind_.role == WorkerRole::kRank ? oldest_unfinished() : nullptr)
    if (auto error = deadlock(*oldest, now)) return make_failure(oldest, std::move(*error));
  return std::nullopt;
}

std::optional<Team::Failure> Team::failure_of_workers(std::int64_t now) {
  std::vector<const Worker*> failed;  // in the order heard of
  for (const Worker& worker : workers_)
    if (worker.error) failed.push_back(&worker);
  std::sort(failed.begin(), failed.end(),
            [](auto* a, auto* b) { return a->error_order < b->error_order; });
  // Finds the first case that went wrong; errors in later ones follow from it.
  std::uint64_t id = failed[0]->error_id;
  for (const Worker* worker : failed) id = std::min(id, worker->error_id);

  std::vector<RankError> errors;
  for (const Worker* worker : failed)
    if (worker->error_id == id) errors.push_back(*worker->error);
  // If cores are few, an echo of another rank's end may arrive long before the report of that end.
  const std::int64_t grace = is_echo(first_cause(errors)) ? kExitReportNs : kGraceNs;
  const bool all_heard = std::all_of(workers_.begin(), workers_.end(),
                                     [&](const Worker& w) { return w.error || w.answered >= id; });
  if (!all_heard && !in_flight_.empty() && now < failing_since_ns_ + grace) {
    next_look_ns_ = std::min(now + kLookNs, failing_since_ns_ + grace);
    return std::nullopt;
  }
  // If a worker died between two cases, and others have not answered the first, that one is to
  // blame.
  InFlight* blamed = in_flight(id);
  if (!blamed && !in_flight_.empty()) blamed = &in_flight_.front();
  return make_failure(blamed,
                      blamed ? of_difference(*blamed, first_cause(errors)) : first_cause(errors));
}

// Returns true for a slow simulation in our own simulator. Its time does not depend on earlier
// cases, of which it keeps nothing that runs.
bool Team::is_slow_simulation(const RankError& error) const {
  return kind_.role == WorkerRole::kSimulator && kind_.rank_program == 0 &&
         error.kind == ErrorKind::kHang;
}

Team::Failure Team::make_failure(InFlight* failed, RankError error) {
  is_broken_ = true;
  Failure failure;
  failure.error = error;
  if (failed) {
    // Ranks that have finished a case may fail in the next one and end while their peers still need
    // them.
    const bool others_may_end = last_id_ > 1 && is_echo(error);
    failure.may_be_inherited = others_may_end || (failed->id > 1 && !is_slow_simulation(error) &&
                                                  distgrad::may_be_inherited(error));
    failure.completion = completion(*failed, std::move(error));
    failure.job = std::move(failed->job);
  }
  return failure;
}

std::optional<Completion> Team::lose_zygote(const std::string& how) {
  InFlight* running = oldest_unfinished();
  const bool begun = running && std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
                       return w.answered >= running->id || slot(w.rank).case_id >= running->id;
                     });
  if (!begun || kind_.role == WorkerRole::kSimulator) return std::nullopt;
  if (!std::exchange(running->job->is_second_run, true)) return std::nullopt;
  RankError error{ErrorKind::kCrash, -1, "",
                  "twice, while this case ran, the process that starts the ranks ended: " + how};
  return make_failure(running, std::move(error)).completion;
}

std::vector<std::unique_ptr<Job>> Team::take_unanswered() {
  std::vector<std::unique_ptr<Job>> jobs;
  for (InFlight& f : in_flight_)
    if (f.job) jobs.push_back(std::move(f.job));
  in_flight_.clear();
  return jobs;
}

std::int64_t Team::next_look_ns() const {
  if (in_flight_.empty() && failing_since_ns_ == 0) {
    const bool all_open =
        std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_open; });
    if (all_open) return std::numeric_limits<std::int64_t>::max();
  }
  return next_look_ns_;
}

}  // namespace distgrad
