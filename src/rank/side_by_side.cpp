#include "rank/side_by_side.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace distgrad {

void side_by_side(std::size_t count, std::size_t worth_a_thread,
                  const std::function<void(std::size_t, std::size_t)>& work) {
  constexpr std::size_t kMostThreads = 4;
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t pieces =
      std::clamp<std::size_t>(count / worth_a_thread, 1, std::min(cores, kMostThreads));
  const std::size_t each = (count + pieces - 1) / pieces;
  std::vector<std::jthread> threads;
  std::size_t begin = 0;
  try {
    for (; begin + each < count; begin += each)
      threads.emplace_back([&work, begin, each] { work(begin, each); });
  } catch (const std::system_error&) {  // no more threads: this one does the rest
  }
  work(begin, count - begin);
}

}  // namespace distgrad
