// A list of ranks as messages and reports have it.
#pragma once

#include <span>
#include <string>

namespace distgrad {

// "rank 0", "ranks 0, 1", "ranks 0-7". The ranks ascend.
std::string ranks_text(std::span<const int> ranks);

}  // namespace distgrad
