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
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/board.h"
#include "protocol/noted_call.h"

namespace distgrad {

// What is watched are the dispatcher's operators of c10d, by which the methods of every process
// group go; torch tells of all operators, which takes time: so there is one of these only where
// code under test may call them, and then for the rest of the process's life.
class NotedCalls {
 public:
  // The driver asks ranks that note for their stack with SIGUSR1, which is ignored from here on.
  static NotedCalls& on(Board&, int rank);
  NotedCalls(const NotedCalls&) = delete;

  // The group's ranks, in its order. Of other groups it is noted only that a call waits.
  void know(const c10d::ProcessGroup&, const std::vector<int>& ranks);

  // Whether it has code under test; else nothing of it is noted.
  void begin_case(bool is_noted);

  // The collectives of the case that ends, the first ones of very many; none where nothing is
  // noted.
  static std::vector<NotedCall> take_entered();

  // Of an operator as the dispatcher knows it, "allreduce_". 0: it is not noted.
  std::uint64_t enter(std::string_view operator_name, c10::ArrayRef<const c10::IValue> inputs);
  // The calls with that number is only begun: is through with it once the work is done. One that
  // cannot be asked is taken to wait until the next one.
  void follow(std::uint64_t number, const std::vector<c10::IValue>& outputs);

 private:
  struct KnownGroup {
    std::string name;
    std::vector<int> ranks;
  };

  NotedCalls(Board& board, int rank)
      : rank_(rank), slot_(board.ranks[rank]), note_(board.calls[rank]) {}
  void set_group(NotedCall& call, const c10d::ProcessGroup&) const;
  void count(NotedCall& call);
  void write(const std::string& text);
  void leave(std::uint64_t number);

  int rank_;
  RankSlot& slot_;
  CallSlot& note_;
  std::mutex mutex_;  // of what follows: works are done in other threads
  bool is_noted_ = true;
  std::map<const c10d::ProcessGroup*, KnownGroup> groups_;
  std::vector<std::pair<std::string, std::uint64_t>> entered_;  // by group; the last used is last
  std::map<std::string, std::deque<NotedCall>> recent_;         // by group: its last calls
  std::vector<NotedCall> reported_;                             // of this case
  std::uint64_t count_ = 0;                                     // of all calls
};

}  // namespace distgrad
