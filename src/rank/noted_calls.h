// Says on the board which collective this rank enters and whether it is through with it, for the
// driver, which looks when a case takes long or a rank has died; as ranks in Python do it
// (ranks/noting.py). For code under test that calls torch's process groups by itself.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/board.h"

namespace distgrad {

// What is watched are the dispatcher's operators of c10d, by which the methods of every process
// group go; torch tells of all operators, which takes time: so there is one of these only where
// code under test may call them, and then for the rest of the process's life.
class NotedCalls {
 public:
  // The driver asks ranks that note for their stack with SIGUSR1, which is ignored from here on.
  static NotedCalls& on(Board&, int rank);
  NotedCalls(const NotedCalls&) = delete;

  // The group's ranks, in its order. Calls of other groups are not noted.
  void know(const c10d::ProcessGroup&, const std::vector<int>& ranks);

  void begin_case();

  // Of an operator as the dispatcher knows it, "c10d::allreduce_". 0: it is not noted.
  std::uint64_t enter(const std::string& operator_name, c10::ArrayRef<const c10::IValue> inputs);
  // The calls with that number is only begun: is through with it once the work is done. One that
  // cannot be asked is taken to wait until the next one.
  void follow(std::uint64_t number, const std::vector<c10::IValue>& outputs);

 private:
  struct KnownGroup {
    std::string name;
    std::vector<int> ranks;
  };

  NotedCalls(Board& board, int rank) : slot_(board.ranks[rank]), note_(board.calls[rank]) {}
  void write(const std::string& text);
  void leave(std::uint64_t number);

  RankSlot& slot_;
  CallSlot& note_;
  std::mutex mutex_;  // of what follows: works are done in other threads
  std::map<const c10d::ProcessGroup*, KnownGroup> groups_;
  std::map<std::string, std::uint64_t> entered_;           // by group
  std::map<std::string, std::deque<std::string>> recent_;  // by group: its last calls, as JSON
  std::uint64_t count_ = 0;                                // of all calls
};

}  // namespace distgrad
