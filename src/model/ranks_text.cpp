#include "model/ranks_text.h"

#include <fmt/ranges.h>

namespace distgrad {

std::string ranks_text(std::span<const int> ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  bool consecutive = ranks.size() > 2;
  for (std::size_t i = 1; i < ranks.size(); ++i)
    consecutive = consecutive && ranks[i] == ranks[i - 1] + 1;
  if (consecutive) return fmt::format("ranks {}-{}", ranks.front(), ranks.back());
  return fmt::format("ranks {}", fmt::join(ranks, ", "));
}

}  // namespace distgrad
