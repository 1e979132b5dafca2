#include "pool/rank_room.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/limits.h"

namespace distgrad {
namespace {

// Gloo starts these in a rank: its device's thread and two that work. Rank 0 also has the store's.
// Each has a stack, which counts as its rank's memory before it is used (RLIMIT_DATA).
constexpr std::uint64_t kThreadsStarted = 3;
constexpr std::uint64_t kThreadsOfStore = 1;
constexpr std::uint64_t kUsualStack = 2 << 20;  // glibc's, if stacks are unlimited

std::uint64_t hard_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_max != RLIM_INFINITY ? limit.rlim_max : 0;
}

std::uint64_t stack_bytes() {
  rlimit limit{};
  return getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                                 : kUsualStack;
}

// Uses the control group's limit; a user's own limit does not hold for root.
std::uint64_t most_tasks() {
  const std::uint64_t group = number_in("/sys/fs/cgroup/pids.max");
  const std::uint64_t user = geteuid() == 0 ? 0 : hard_limit(RLIMIT_NPROC);
  return group == 0 || user == 0 ? std::max(group, user) : std::min(group, user);
}

}  // namespace

RankRoom room_for_ranks() {
  return {given_memory_bytes(), stack_bytes(), hard_limit(RLIMIT_NOFILE), most_tasks()};
}

std::string why_no_room(int world_size, const RankRoom& room) {
  if (world_size < 2) return {};  // connected with nobody
  constexpr std::uint64_t kMiB = 1 << 20;
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const std::uint64_t stacks = (kThreadsStarted + kThreadsOfStore) * room.stack_bytes;
  const std::uint64_t connections = 2 * ranks - 1;  // rank 0's: to all others and to its store
  const std::uint64_t tasks = (1 + kThreadsStarted) * ranks + kThreadsOfStore;
  std::string why;
  if (room.memory_bytes > 0 && room.memory_bytes / ranks <= stacks)
    why = fmt::format("each may have {} MiB of memory, and the stacks of rank 0's threads take {}",
                      room.memory_bytes / ranks / kMiB, stacks / kMiB);
  else if (room.descriptors > 0 && connections > room.descriptors)
    why = fmt::format("rank 0 opens {} connections, and a process may open {} (ulimit -Hn)",
                      connections, room.descriptors);
  else if (room.tasks > 0 && tasks > room.tasks)
    why = fmt::format("they are {} threads, and there may be {}", tasks, room.tasks);
  return why.empty()
             ? why
             : fmt::format("{} ranks cannot run on this machine: {}; --simulate starts none",
                           world_size, why);
}

}  // namespace distgrad
