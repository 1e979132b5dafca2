// Spells a list of ranks for messages and reports.
#pragma once

#include <span>
#include <string>

namespace distgrad {

// Returns "rank 0", "ranks 0, 1" or "ranks 0-7". The ranks must ascend.
std::string ranks_text(std::span<const int> ranks);

}  // namespace distgrad
