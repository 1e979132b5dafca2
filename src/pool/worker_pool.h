// Where cases are worked on: simulators and teams of ranks, started as needed, fed ahead, watched,
// replaced after a failure, stopped. The driver submits requests and takes completions as they
// come:
//
//   WorkerPool pool({.rank_commands = {{"/usr/bin/distgrad-rank"}}});
//   const Ticket truth = pool.simulate(simulate_request, 30);
//   const Ticket observed = pool.run(run_request, 30);
//   while (std::optional<Completion> done = pool.next()) ...
//
// Single-threaded: everything happens inside next(), wait() and their like. No process outlives the
// object, nor this process however it ends. A case that crashes, hangs or raises is an error of
// that case alone; what a machine lacks (no executable, no memory for a process) is a SystemError,
// thrown by whatever call finds it.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pool/job.h"
#include "pool/team.h"
#include "pool/zygote_process.h"

namespace distgrad {

struct WorkerPoolOptions {
  // Programs that speak the rank protocol, with arguments. The first one is started at once, as a
  // simulator; others with the first case for them.
  std::vector<std::vector<std::string>> rank_commands;
  int simulators = 0;  // at most; 0: one a core
  // Teams of one world that work side by side, at most: a case that waits for something keeps one
  // of them.
  int teams = 1;
  // Where the ranks are elsewhere (other machines'): opens the control socket of a zygote that runs
  // this command there. Simulators are here all the same. Empty: all is here.
  std::function<UniqueFd(const std::vector<std::string>& command)> open_elsewhere = {};
  // For workers to begin their first case, once their program is ready.
  double begin_s = 60;
  // The axes of meshes that are laid over a launcher's processes in this order
  // (model/mesh_order.h); other meshes lie as they are.
  std::vector<std::string> mesh_order = {};
  // Called while ranks, or a program before it forks them, import a subject, which is no part of a
  // case's time, with what was asked for and the seconds so far.
  std::function<void(const std::string& subject, double seconds)> on_loading = {};
  // What each of rank_commands imports of the user's before it is ready; may be empty.
  std::vector<std::vector<std::string>> imports = {};
};

enum class QueuePosition { kLast, kNext };  // behind what waits already, or before it

class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolOptions options);  // returns at once; one simulator is on its way
  ~WorkerPool();

  // Starts the ranks of a world ahead of the first case for it.
  void prepare(int world_size, int rank_program = 0, const std::string& transport = {});

  // The case's time begins when its first worker begins it, not with the submission. Cases are best
  // submitted ordered by world size: changing it costs time.
  Ticket simulate(SimulateRequest request, double timeout_s,
                  QueuePosition position = QueuePosition::kLast, int rank_program = 0);
  // `expected`: what the ranks' tensors probably are.
  Ticket run(RunRequest request, double timeout_s, int rank_program = 0,
             std::shared_ptr<const ExpectedValues> expected = {});

  // The next completion, in whatever order cases are done. Waits for it; nothing when nothing is
  // outstanding, or when the process was interrupted (interrupted_by() of base/interrupts.h) and
  // what was done before has been taken.
  std::optional<Completion> next();
  // The same without waiting.
  std::optional<Completion> next_if_any();
  // The completion of this ticket, others staying for next(); nothing when interrupted, or when it
  // was taken before.
  std::optional<Completion> wait(Ticket ticket);

  std::size_t outstanding() const { return outstanding_; }  // submitted and not yet taken

  // The version of torch that the program's workers have; waits until it is known.
  std::string torch_version(int rank_program = 0);

 private:
  using Jobs = std::deque<std::unique_ptr<Job>>;
  enum class Patience { kNone, kUntilSomething };

  Ticket submit(std::unique_ptr<Job> job, QueuePosition position);
  void turn_once(Patience patience);
  void schedule();
  void schedule_simulations(TeamKind kind, Jobs& jobs);
  void schedule_runs();
  void answer_for_too_many();
  std::optional<TeamKind> kind_of_oldest_run() const;
  void fill(Team& team, Jobs& jobs);
  void share(TeamKind kind, Jobs& jobs);
  std::size_t zygote_place(int rank_program, WorkerRole role) const;
  ZygoteProcess& zygote(int rank_program, WorkerRole role);
  Team* team_of(TeamKind kind);
  Team& start_team(TeamKind kind);
  void retire_idle_teams(int room_for);
  int poll_timeout_ms(Patience patience) const;
  void serve_zygotes();
  void replace_zygote(std::size_t place, const std::string& why);
  void collect();
  void tell_of_loading();
  std::string imports_text(std::size_t zygote_place) const;
  bool settle_failure(Team& team);
  void requeue(std::vector<std::unique_ptr<Job>> jobs);
  std::optional<Completion> take_done(std::optional<Ticket> ticket);

  WorkerPoolOptions options_;
  std::set<pid_t> children_before_;
  std::vector<std::unique_ptr<ZygoteProcess>> zygotes_;  // by zygote_place(); teams refer to them
  std::set<std::size_t> got_ready_;                      // places whose zygote, or one before, was
  std::list<std::unique_ptr<Team>> teams_;               // the last used is last
  std::map<TeamKind, Jobs> waiting_;
  struct TooMany {
    double timeout_s = 0;
    Completion completion;
  };
  std::map<TeamKind, TooMany> too_many_;  // how their first case failed
  std::optional<TeamKind> current_;       // the world that gets the cases now
  std::deque<Completion> done_;
  Ticket last_ticket_ = 0;
  std::size_t outstanding_ = 0;
  int zygotes_lost_ = 0;  // since a case was last completed
};

// "distgrad-rank" beside this process's executable.
std::string rank_executable();

}  // namespace distgrad
