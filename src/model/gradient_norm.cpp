#include "model/gradient_norm.h"

#include <algorithm>
#include <stdexcept>

namespace distgrad {

std::optional<std::string> inner_of_gradient_norm(std::string_view loss) {
  constexpr std::string_view kBlanks = " \t", kName = "squared_gradient_norm(";
  loss.remove_prefix(std::min(loss.find_first_not_of(kBlanks), loss.size()));
  if (!loss.starts_with(kName)) return std::nullopt;
  std::size_t depth = 1, end = kName.size();
  for (; end < loss.size() && depth > 0; ++end)
    depth += loss[end] == '(' ? 1 : loss[end] == ')' ? -1 : 0;
  if (depth > 0 || loss.find_first_not_of(kBlanks, end) != loss.npos)
    throw std::invalid_argument("squared_gradient_norm(...) is the whole loss or no part of it");
  return std::string(loss.substr(kName.size(), end - 1 - kName.size()));
}

}  // namespace distgrad
