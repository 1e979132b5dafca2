#include "pool/worker_pool.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/adopted_children.h"
#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/limits.h"
#include "base/machine_needs.h"
#include "model/mesh_order.h"
#include "pool/installation.h"

namespace distgrad {
namespace {

constexpr int kKeptRanks = 24;      // idle ranks that are kept in case a world size comes back
constexpr int kMaxZygotesLost = 3;  // in a row, without a completed case
// Limits the time of a zygote to get ready, on a busy machine.
constexpr std::int64_t kZygoteLoadNs = std::int64_t{300} * 1'000'000'000;
// Adds this time for the user's code, after which the zygote gives up on it.
constexpr std::int64_t kImportNs = std::int64_t{900} * 1'000'000'000;
constexpr double kTorchS = 3;  // the time that torch may take before an import is reported

// Refilling costs a system call a rank, so it waits for more than one reply, but not until workers
// run out.
constexpr std::size_t kRefillBelow = 48;
// Says how many requests a simulator has before another one is started.
constexpr std::size_t kSimulatorsShare = 2;
constexpr std::size_t kTeamsShare = 2;  // the same for teams that work side by side
// Bounds what such a team has ahead. It is small, since a case that waits keeps those behind it
// from the other teams.
constexpr std::size_t kSharedWindow = 8;

}  // namespace

WorkerPool::WorkerPool(WorkerPoolOptions options)
    : options_(std::move(options)), zygotes_(2 * options_.rank_commands.size()) {
  if (options_.simulators <= 0)
    options_.simulators = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  raise_descriptor_limit();
  children_before_ = current_children();  // those of a shell that became this process
  adopt_orphans();
  start_team({});
}

WorkerPool::~WorkerPool() {
  teams_.clear();
  zygotes_.clear();  // they end all workers and what these left; what a killed zygote left is ours
                     // now
  std::set<pid_t> kept = started_children();
  kept.merge(children_before_);
  end_children_but(kept);
}

void WorkerPool::prepare(int world_size, int rank_program, const std::string& transport) {
  if (!options_.mesh_order.empty()) return;  // the case will say which ranks are where
  const TeamKind kind{rank_program, WorkerRole::kRank, world_size, transport};
  if (!team_of(kind)) start_team(kind);
}

Ticket WorkerPool::simulate(SimulateRequest request, double timeout_s, QueuePosition position,
                            int rank_program) {
  auto job = std::make_unique<Job>();
  job->kind.rank_program = rank_program;
  job->request = std::move(request);
  job->timeout_s = timeout_s;
  return submit(std::move(job), position);
}

namespace {

std::vector<int> places_of(const Program& program, const std::vector<std::string>& mesh_order) {
  std::vector<MeshAxis> mesh;
  for (const Group* axis : program.mesh())
    mesh.push_back({axis->name, static_cast<int>(axis->partition.front().size())});
  return places_in_order(mesh, mesh_order);
}

}  // namespace

Ticket WorkerPool::run(RunRequest request, double timeout_s, int rank_program,
                       std::shared_ptr<const ExpectedValues> expected) {
  auto job = std::make_unique<Job>();
  job->kind = {rank_program, WorkerRole::kRank, request.program.world_size,
               transport_of(request.backend, request.device),
               places_of(request.program, options_.mesh_order)};
  job->request = std::move(request);
  job->expected = std::move(expected);
  job->timeout_s = timeout_s;
  return submit(std::move(job), QueuePosition::kLast);
}

Ticket WorkerPool::submit(std::unique_ptr<Job> job, QueuePosition position) {
  job->ticket = ++last_ticket_;
  if (limits().case_s > 0) job->timeout_s = std::min(job->timeout_s, limits().case_s);
  ++outstanding_;
  Jobs& jobs = waiting_[job->kind];
  if (position == QueuePosition::kNext)
    jobs.push_front(std::move(job));
  else
    jobs.push_back(std::move(job));
  return last_ticket_;
}

std::optional<Completion> WorkerPool::take_done(std::optional<Ticket> ticket) {
  const auto found = std::find_if(done_.begin(), done_.end(), [&](const Completion& c) {
    return !ticket || c.ticket == *ticket;
  });
  if (found == done_.end()) return std::nullopt;
  Completion completion = std::move(*found);
  done_.erase(found);
  --outstanding_;
  return completion;
}

std::optional<Completion> WorkerPool::next() {
  for (;;) {
    if (auto done = take_done(std::nullopt)) return done;
    if (outstanding_ == 0 || interrupted_by()) return std::nullopt;
    turn_once(Patience::kUntilSomething);
  }
}

std::optional<Completion> WorkerPool::next_if_any() {
  if (done_.empty() && outstanding_ > 0 && !interrupted_by()) turn_once(Patience::kNone);
  return take_done(std::nullopt);
}

std::optional<Completion> WorkerPool::wait(Ticket ticket) {
  for (;;) {
    if (auto done = take_done(ticket)) return done;
    if (interrupted_by() || done_.size() == outstanding_) return std::nullopt;
    turn_once(Patience::kUntilSomething);
  }
}

std::string WorkerPool::torch_version(int rank_program) {
  while (!zygote(rank_program, WorkerRole::kSimulator).is_ready() && !interrupted_by())
    turn_once(Patience::kUntilSomething);
  return zygote(rank_program, WorkerRole::kSimulator).torch();
}

void WorkerPool::turn_once(Patience patience) {
  schedule();
  std::vector<pollfd> fds;
  fds.push_back({interrupts_fd(), POLLIN, 0});
  for (const auto& zygote : zygotes_) {
    const short events = zygote && zygote->wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    fds.push_back({zygote ? zygote->fd() : -1, events, 0});
  }
  for (const auto& team : teams_) {
    team->flush();
    team->append_poll_fds(fds);
  }
  if (poll(fds.data(), fds.size(), poll_timeout_ms(patience)) < 0 && errno != EINTR)
    throw SystemError(std::string("poll: ") + std::strerror(errno));

  std::span<const pollfd> ready = std::span(fds).subspan(1 + zygotes_.size());
  for (const auto& team : teams_) {
    team->exchange(ready);
    ready = ready.subspan(static_cast<std::size_t>(team->kind().world_size));
  }
  serve_zygotes();
  collect();
  tell_of_loading();
}

void WorkerPool::tell_of_loading() {
  if (!options_.on_loading) return;
  for (const auto& team : teams_)
    if (const auto loading = team->loading())
      return options_.on_loading(loading->subject, loading->seconds);
  for (std::size_t i = 0; i < zygotes_.size(); ++i) {
    if (!zygotes_[i] || zygotes_[i]->is_ready()) continue;
    const auto seconds = static_cast<double>(monotonic_ns() - zygotes_[i]->started_ns()) * 1e-9;
    if (const std::string text = imports_text(i); !text.empty() && seconds > kTorchS)
      return options_.on_loading(text, seconds);
  }
}

// Names what a zygote imports before it is ready.
std::string WorkerPool::imports_text(std::size_t zygote_place) const {
  const std::size_t program = zygote_place % options_.rank_commands.size();
  if (program >= options_.imports.size()) return "";
  return fmt::format("{}", fmt::join(options_.imports[program], ", "));
}

int WorkerPool::poll_timeout_ms(Patience patience) const {
  if (patience == Patience::kNone) return 0;
  const std::int64_t now = monotonic_ns();
  std::int64_t next = now + 1'000'000'000;
  for (const auto& team : teams_) next = std::min(next, team->next_look_ns());
  return next <= now ? 0 : static_cast<int>((next - now) / 1'000'000 + 1);
}

// --- Which worker gets what ---

void WorkerPool::schedule() {
  for (auto& [kind, jobs] : waiting_)
    if (kind.role == WorkerRole::kSimulator) schedule_simulations(kind, jobs);
  schedule_runs();
}

void WorkerPool::schedule_simulations(TeamKind kind, Jobs& jobs) {
  while (!jobs.empty()) {
    Team* least = nullptr;
    int simulators = 0;
    for (const auto& team : teams_) {
      if (team->kind() != kind) continue;
      ++simulators;
      if (team->has_room() && (!least || team->in_flight() < least->in_flight()))
        least = team.get();
    }
    if (simulators < options_.simulators && (!least || least->in_flight() >= kSimulatorsShare))
      least = &start_team(kind);
    if (!least) return;
    least->send(std::move(jobs.front()));
    jobs.pop_front();
  }
}

// Gives cases to one world at a time. When no more wait for it, the next one gets some, while the
// first finishes what it has.
void WorkerPool::schedule_runs() {
  answer_for_too_many();
  if (!current_ || waiting_[*current_].empty()) current_ = kind_of_oldest_run();
  if (!current_) return;
  Jobs& jobs = waiting_[*current_];
  if (options_.teams > 1) return share(*current_, jobs);
  Team* team = team_of(*current_);
  fill(team ? *team : start_team(*current_), jobs);
}

// Answers cases for ranks that did not get connected when they had at least as much time.
void WorkerPool::answer_for_too_many() {
  for (auto& [kind, failed] : too_many_) {
    Jobs& jobs = waiting_[kind];
    for (auto job = jobs.begin(); job != jobs.end();) {
      if ((*job)->timeout_s > failed.timeout_s) {
        ++job;
        continue;
      }
      done_.push_back(failed.completion);
      done_.back().ticket = (*job)->ticket;
      job = jobs.erase(job);
    }
  }
}

std::optional<TeamKind> WorkerPool::kind_of_oldest_run() const {
  std::optional<TeamKind> oldest;
  Ticket ticket = 0;
  for (const auto& [kind, jobs] : waiting_) {
    if (kind.role != WorkerRole::kRank || jobs.empty()) continue;
    if (oldest && jobs.front()->ticket > ticket) continue;
    ticket = jobs.front()->ticket;
    oldest = kind;
  }
  return oldest;
}

void WorkerPool::fill(Team& team, Jobs& jobs) {
  if (team.in_flight() > kRefillBelow) return;
  while (!jobs.empty() && team.has_room()) {
    team.send(std::move(jobs.front()));
    jobs.pop_front();
  }
}

// Gives each case to the team with the fewest. A second run is only meaningful on fresh ranks,
// which have had no other case.
void WorkerPool::share(TeamKind kind, Jobs& jobs) {
  while (!jobs.empty()) {
    Team* least = nullptr;
    int teams = 0;
    for (const auto& team : teams_) {
      if (team->kind() != kind) continue;
      ++teams;
      const bool fits = team->has_room() && (team->is_fresh() || !jobs.front()->is_second_run);
      if (fits && (!least || team->in_flight() < least->in_flight())) least = team.get();
    }
    const bool wants_another = !least || least->in_flight() >= kTeamsShare;
    if (wants_another && (teams < options_.teams || (!least && jobs.front()->is_second_run)))
      least = &start_team(kind);
    if (!least || least->in_flight() >= kSharedWindow) return;
    least->send(std::move(jobs.front()));
    jobs.pop_front();
  }
}

// Places of zygotes elsewhere follow those of zygotes here.
std::size_t WorkerPool::zygote_place(int rank_program, WorkerRole role) const {
  const bool elsewhere = options_.open_elsewhere && role == WorkerRole::kRank;
  return static_cast<std::size_t>(rank_program) + (elsewhere ? options_.rank_commands.size() : 0);
}

ZygoteProcess& WorkerPool::zygote(int rank_program, WorkerRole role) {
  const std::size_t place = zygote_place(rank_program, role);
  auto& zygote = zygotes_.at(place);
  if (zygote) return *zygote;
  const std::vector<std::string>& command =
      options_.rank_commands.at(static_cast<std::size_t>(rank_program));
  zygote = place < options_.rank_commands.size()
               ? std::make_unique<ZygoteProcess>(command)
               : std::make_unique<ZygoteProcess>(command, options_.open_elsewhere(command));
  return *zygote;
}

Team* WorkerPool::team_of(TeamKind kind) {
  for (auto it = teams_.begin(); it != teams_.end(); ++it) {
    if ((*it)->kind() != kind) continue;
    teams_.splice(teams_.end(), teams_, it);
    return it->get();
  }
  return nullptr;
}

Team& WorkerPool::start_team(TeamKind kind) {
  if (kind.role == WorkerRole::kRank) {
    require_loopback();
    retire_idle_teams(kind.world_size);
  }
  ZygoteProcess& parent = zygote(kind.rank_program, kind.role);
  teams_.push_back(std::make_unique<Team>(parent, kind, options_.begin_s));
  parent.flush();
  return *teams_.back();
}

void WorkerPool::retire_idle_teams(int room_for) {
  int ranks = room_for;
  for (const auto& team : teams_)
    if (team->kind().role == WorkerRole::kRank) ranks += team->kind().world_size;
  for (auto it = teams_.begin(); it != teams_.end() && ranks > kKeptRanks;) {
    const bool idle = (*it)->kind().role == WorkerRole::kRank && (*it)->in_flight() == 0;
    if (idle) ranks -= (*it)->kind().world_size;
    it = idle ? teams_.erase(it) : std::next(it);
  }
}

// --- What became of it ---

void WorkerPool::serve_zygotes() {
  for (std::size_t i = 0; i < zygotes_.size(); ++i) {
    if (!zygotes_[i]) continue;
    if (zygotes_[i]->is_ready()) got_ready_.insert(i);
    for (const ZygoteEvent& event : zygotes_[i]->exchange())
      for (const auto& team : teams_)
        if (&team->zygote() == zygotes_[i].get() && team->on_event(event)) break;
    if (const std::string why = zygotes_[i]->why_silent(); !why.empty()) {
      zygotes_[i]->end_now();
      replace_zygote(i, why);
    } else if (zygotes_[i]->has_ended()) {
      replace_zygote(i, "");
    } else if (!zygotes_[i]->is_ready() &&
               monotonic_ns() > zygotes_[i]->started_ns() + kZygoteLoadNs +
                                    (imports_text(i).empty() ? 0 : kImportNs)) {
      throw SystemError(zygotes_[i]->command()[0] + " does not get ready");
    }
  }
}

// Replaces a zygote that ended. If none before it got ready, it never will, unless it was only
// stopped. One that was killed takes its workers with it. The case that ran then runs again, alone;
// if that ends a zygote, too, the case is to blame.
void WorkerPool::replace_zygote(std::size_t place, const std::string& why) {
  std::unique_ptr<ZygoteProcess>& zygote = zygotes_[place];
  const std::string how = why.empty() ? zygote->end_text() : why;
  const bool never_will = why.empty() && !zygote->is_ready() && !got_ready_.contains(place);
  if (never_will || ++zygotes_lost_ > kMaxZygotesLost)
    throw SystemError(cannot_run(zygote->command()[0], how));
  for (auto it = teams_.begin(); it != teams_.end();) {
    if (&(*it)->zygote() != zygote.get()) {
      ++it;
      continue;
    }
    std::optional<Completion> blamed = (*it)->lose_zygote(how);
    requeue((*it)->take_unanswered());
    if (blamed) {
      done_.push_back(std::move(*blamed));
      zygotes_lost_ = 0;
    }
    it = teams_.erase(it);
  }
  zygote.reset();
}

void WorkerPool::collect() {
  for (auto it = teams_.begin(); it != teams_.end();) {
    for (Completion& completion : (*it)->take_completed()) {
      done_.push_back(std::move(completion));
      zygotes_lost_ = 0;
    }
    it = settle_failure(**it) ? teams_.erase(it) : std::next(it);
  }
}

// Returns true if the team has failed; its cases are then elsewhere and it can go.
bool WorkerPool::settle_failure(Team& team) {
  std::optional<Team::Failure> failure = team.find_failure();
  if (!failure) return false;
  requeue(team.take_unanswered());
  if (!failure->job) return true;
  if (failure->too_many_ranks)
    too_many_[team.kind()] = {failure->job->timeout_s, failure->completion};
  if (failure->may_be_inherited && !failure->job->is_second_run) {
    failure->job->is_second_run = true;
    waiting_[failure->job->kind].push_front(std::move(failure->job));
  } else {
    done_.push_back(std::move(failure->completion));
  }
  return true;
}

// Puts the jobs to the front, in their order.
void WorkerPool::requeue(std::vector<std::unique_ptr<Job>> jobs) {
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job)
    waiting_[(*job)->kind].push_front(std::move(*job));
}

std::string rank_executable() { return (executable_folder() / "distgrad-rank").string(); }

}  // namespace distgrad
