// Works on cases: it starts simulators and teams of ranks as needed, feeds them ahead, watches
// them, replaces them after a failure, and stops them. The driver submits requests and takes
// completions as they come:
//
//   WorkerPool pool({.rank_commands = {{"/usr/bin/distgrad-rank"}}});
//   const Ticket truth = pool.simulate(simulate_request, 30);
//   const Ticket observed = pool.run(run_request, 30);
//   while (std::optional<Completion> done = pool.next()) ...
//
// It is single-threaded: everything happens inside next(), wait() and the like. No process outlives
// the object, nor this process however it ends. A case that crashes, hangs or raises is an error of
// that case only. If the machine lacks something (no executable, no memory for a process), the call
// that finds it throws a SystemError.
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
  // Has programs that speak the rank protocol, with arguments. The first one starts at once, as a
  // simulator; the others start with their first case.
  std::vector<std::vector<std::string>> rank_commands;
  int simulators = 0;  // most of them; 0: one a core
  // Limits the teams of one world that work side by side. A case that waits for something keeps
  // one.
  int teams = 1;
  // Opens the control socket of a zygote that runs this command elsewhere, for ranks on other
  // machines. Simulators always run here. Empty means that everything runs here.
  std::function<UniqueFd(const std::vector<std::string>& command)> open_elsewhere = {};
  // Gives the time, in seconds, that workers have to begin their first case once their program is
  // ready.
  double begin_s = 60;
  // Names the axes of meshes that are laid over a launcher's processes in this order
  // (model/mesh_order.h); other meshes stay as they are.
  std::vector<std::string> mesh_order = {};
  // The pool calls it with what was asked for and the seconds so far while ranks, or a program
  // before it forks them, import a subject. That does not count as a case's time.
  std::function<void(const std::string& subject, double seconds)> on_loading = {};
  // Has what each of rank_commands imports of the user's before it is ready; may be empty.
  std::vector<std::vector<std::string>> imports = {};
};

enum class QueuePosition { kLast, kNext };  // after what waits already, or before it

class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolOptions options);  // returns at once; one simulator is starting
  ~WorkerPool();

  // Starts the ranks of a world before their first case.
  void prepare(int world_size, int rank_program = 0, const std::string& transport = {});

  // Submits a case. Its time begins when its first worker begins it, not with the submission.
  // Submit cases ordered by world size, since changing it costs time.
  Ticket simulate(SimulateRequest request, double timeout_s,
                  QueuePosition position = QueuePosition::kLast, int rank_program = 0);
  // Submits a run. `expected` is what the ranks' tensors probably are.
  Ticket run(RunRequest request, double timeout_s, int rank_program = 0,
             std::shared_ptr<const ExpectedValues> expected = {});

  // Waits for the next completion and returns it, in whatever order cases finish. Returns nothing
  // if nothing is outstanding, or if the process was interrupted (interrupted_by() of
  // base/interrupts.h) and all earlier completions have been taken.
  std::optional<Completion> next();
  // Does the same without waiting.
  std::optional<Completion> next_if_any();
  // Waits for this ticket's completion; others stay for next(). Returns nothing when interrupted,
  // or if it was taken before.
  std::optional<Completion> wait(Ticket ticket);

  std::size_t outstanding() const { return outstanding_; }  // submitted and not yet taken

  // Returns the version of torch that the program's workers have. Waits until it is known.
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
  std::set<std::size_t> got_ready_;         // places with a zygote that is, or once was, ready
  std::list<std::unique_ptr<Team>> teams_;  // the last used is last
  std::map<TeamKind, Jobs> waiting_;
  struct TooMany {
    double timeout_s = 0;
    Completion completion;
  };
  std::map<TeamKind, TooMany> too_many_;  // how their first case failed
  std::optional<TeamKind> current_;       // the world that gets cases at the moment
  std::deque<Completion> done_;
  Ticket last_ticket_ = 0;
  std::size_t outstanding_ = 0;
  int zygotes_lost_ = 0;  // since a case was last completed
};

// Returns the path of "distgrad-rank" beside this process's executable.
std::string rank_executable();

}  // namespace distgrad
