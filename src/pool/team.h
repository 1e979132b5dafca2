// Drives a team: workers that take the same requests in the same order. They are the ranks of one
// world, or one simulator. Requests are streamed ahead of the replies, so that workers never wait
// for the driver. After the first failure a team is useless, since its ranks are out of step.
// Passive and single-threaded; WorkerPool drives it.
#pragma once

#include <poll.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory_file.h"
#include "pool/blame.h"
#include "pool/job.h"
#include "pool/zygote_process.h"
#include "protocol/board.h"

namespace distgrad {

class Team {
 public:
  // Asks the zygote, which must outlive the team, for the workers. `begin_s` is that of
  // WorkerPoolOptions, in seconds.
  Team(ZygoteProcess& zygote, TeamKind kind, double begin_s);
  // Kills workers that are in the middle of something; idle ones end by themselves.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  TeamKind kind() const { return kind_; }
  const ZygoteProcess& zygote() const { return zygote_; }
  std::size_t in_flight() const { return in_flight_.size(); }
  bool has_room() const;                           // false once something went wrong
  bool is_fresh() const { return last_id_ == 0; }  // no case was ever sent to it

  void send(std::unique_ptr<Job> job);

  // Adds one for each worker, in order; its fd is -1 if there is nothing to hear.
  void append_poll_fds(std::vector<pollfd>& fds) const;
  void exchange(std::span<const pollfd> ready);  // sends and receives what can be without waiting
  void flush();
  bool on_event(const ZygoteEvent& event);  // false: not about a worker of this team

  // Returns the cases that all workers have answered without an error, in order.
  std::vector<Completion> take_completed();

  // Says how the team failed, once that is known. `job` is null if no case is to blame.
  // take_unanswered() returns the other unanswered jobs.
  struct Failure {
    std::unique_ptr<Job> job;
    bool may_be_inherited = false;  // another case of these workers may have caused it
    bool too_many_ranks = false;    // for the cores, as in every case that has no more time
    RankError error;
    Completion completion;  // of the job, as an error
  };
  // Call it when nothing is left to be received, since a late reply is better than a timeout.
  std::optional<Failure> find_failure();
  std::vector<std::unique_ptr<Job>> take_unanswered();

  // Handles the loss of the zygote, and of the workers with it. The case that was being worked on
  // is to run once more, alone; the second time it is an error of that case. Call it before
  // take_unanswered().
  std::optional<Completion> lose_zygote(const std::string& how);

  // Returns when find_failure() may have something new to say although nothing was received.
  std::int64_t next_look_ns() const;

  // Names a case whose subject some worker is importing, which does not count as the case's time.
  struct Loading {
    std::string subject;
    double seconds = 0;
  };
  std::optional<Loading> loading() const;

 private:
  struct Worker {
    std::uint64_t name = 0;
    int rank = 0;
    Channel channel;
    std::shared_ptr<const UniqueFd> output;
    std::uint64_t answered = 0;  // the id of the last reply
    bool is_open = true;         // its socket
    std::int64_t closed_ns = 0;
    std::optional<int> wait_status;
    pid_t pid = 0;         // if it is here, once the zygote has said it
    WorkerSeen seen = {};  // what the zygote last saw of it, if it is elsewhere
    // Say what went wrong, and in which case (an id).
    std::optional<RankError> error;
    std::uint64_t error_id = 0;
    int error_order = 0;  // its rank among the errors, in the order in which they arrived
  };

  struct InFlight {
    std::uint64_t id = 0;
    std::unique_ptr<Job> job;
    std::vector<std::optional<WorkReply>> replies;  // by rank
    std::size_t answered = 0;
    std::size_t weight = 0;  // bytes
    // Times are by the driver's own clock, since the board only has the rank's word.
    std::int64_t sent_ns = 0;
    std::int64_t started_ns = 0;  // when a worker was first seen to have begun it; 0: not yet
    std::int64_t loading_ns = 0;  // when a worker was last seen to import its subject; 0: never
    std::int64_t first_loading_ns = 0;
    std::int64_t waited_for_core_ns = 0;  // how long the workers had waited for a core when it
                                          // began
    std::int64_t began_ns() const {
      return std::max(started_ns, loading_ns);
    }  // when the case's own time began
  };

  const RankSlot& slot(int rank) const {
    return reinterpret_cast<const Board*>(board_.get())->ranks[rank];
  }
  const CallSlot& calls(int rank) const {
    return reinterpret_cast<const Board*>(board_.get())->calls[rank];
  }
  int reported_rank(const Worker& worker) const {
    return kind_.role == WorkerRole::kSimulator ? -1 : worker.rank;
  }
  InFlight* in_flight(std::uint64_t id);
  void receive(Worker& worker);
  void take_reply(Worker& worker, WorkReply reply);
  void compare_entered(InFlight& done);
  void fail_worker(Worker& worker, std::uint64_t id, RankError error);
  void judge_dead_worker(Worker& worker, std::int64_t now);
  RankPlace place(const Worker& worker, const InFlight& in_flight) const;
  char state_of(const Worker& worker) const;  // as in /proc; 0: unknown
  std::int64_t waited_for_core_ns(const Worker& worker) const;
  void look_at(const std::vector<const Worker*>& workers, std::vector<RankPlace>& places) const;
  bool is_finished_by_all(const InFlight& in_flight) const;
  bool is_loading(const InFlight& in_flight) const;  // some worker imports its subject
  InFlight* oldest_unfinished();
  void look_at_clock(InFlight& in_flight, std::int64_t now);
  InFlight* overdue(std::int64_t now);
  std::int64_t time_without_core_ns(const InFlight& in_flight) const;
  RankError too_many_ranks(double timeout_s) const;
  std::string patience_text(const InFlight& in_flight, std::int64_t now) const;
  std::optional<RankError> deadlock(const InFlight& in_flight, std::int64_t now);
  std::vector<RankPlace> places(const InFlight& in_flight) const;
  std::vector<RankPlace> places_seen(const InFlight& in_flight) const;
  RankError of_difference(const InFlight& in_flight, RankError error) const;
  InFlight* loading_for_too_long(std::int64_t now);
  std::optional<Failure> failure_of_workers(std::int64_t now);
  bool is_slow_simulation(const RankError& error) const;
  Failure make_failure(InFlight* failed, RankError error);
  Completion completion(InFlight& done, std::optional<RankError> error);

  ZygoteProcess& zygote_;
  TeamKind kind_;
  std::int64_t begin_ns_;  // the time its workers have to begin their first case
  MappedMemory board_;
  std::vector<Worker> workers_;
  std::deque<InFlight> in_flight_;
  std::uint64_t last_id_ = 0;
  std::size_t weight_in_flight_ = 0;
  int errors_ = 0;
  std::uint64_t memory_kills_before_ = 0;
  bool is_broken_ = false;  // a failure has been reported, and whatever still runs is to be killed
  std::int64_t failing_since_ns_ = 0;
  std::int64_t next_look_ns_ = 0;
  std::string last_state_;           // of ranks that looked stuck
  std::int64_t stuck_since_ns_ = 0;  // when they were first seen so
};

}  // namespace distgrad
