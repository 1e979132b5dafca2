// Spreads work on large memory over several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace distgrad {

// Calls work(begin, count) for pieces that make up [0, count) together. Pieces of at least
// `worth_a_thread` elements get a thread each, as far as there are cores. Returns when all are
// done. `work` must not throw.
void side_by_side(std::size_t count, std::size_t worth_a_thread,
                  const std::function<void(std::size_t begin, std::size_t count)>& work);

}  // namespace distgrad
