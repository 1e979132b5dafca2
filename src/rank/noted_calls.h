// Notes on the board which collective this rank has entered and whether it has completed. The
// driver reads the notes when a case takes long or a rank has died. This is for code under test
// that calls torch's process groups itself; ranks in Python do the same (ranks/noting.py).
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

// Watches the c10d operators of torch's dispatcher, which the methods of every process group go
// through. Torch reports all operators to a watcher, which takes time. So one is made only where
// code under test may call them; it then stays for the rest of the process's life.
class NotedCalls {
 public:
  // Makes the process ignore SIGUSR1, by which the driver asks ranks that note for their stack.
  static NotedCalls& on(Board&, int rank);
  NotedCalls(const NotedCalls&) = delete;

  // Takes the group's ranks in group order. Calls of unknown groups are noted only as waiting.
  void know(const c10d::ProcessGroup&, const std::vector<int>& ranks);

  // `is_noted`: whether the case has code under test; nothing else is noted.
  void begin_case(bool is_noted);

  // Returns the collectives of the case that ends, only the first ones if there are very many, and
  // none if nothing is noted.
  static std::vector<NotedCall> take_entered();

  // Takes the dispatcher's name of an operator, "allreduce_". Returns the call's number; 0: not
  // noted.
  std::uint64_t enter(std::string_view operator_name, c10::ArrayRef<const c10::IValue> inputs);
  // Marks the call as completed once its work is done. A work that cannot be asked is taken to wait
  // until the next call.
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
  std::mutex mutex_;  // guards what follows: works complete in other threads
  bool is_noted_ = true;
  std::map<const c10d::ProcessGroup*, KnownGroup> groups_;
  std::vector<std::pair<std::string, std::uint64_t>> entered_;  // by group; the last used is last
  std::map<std::string, std::deque<NotedCall>> recent_;         // each group's last calls
  std::vector<NotedCall> reported_;                             // the calls of this case
  std::uint64_t count_ = 0;                                     // the number of all calls
};

}  // namespace distgrad
