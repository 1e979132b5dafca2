#include "base/did_you_mean.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <vector>

namespace distgrad {
namespace {

// Counts insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> known) {
  constexpr std::size_t kLongestName =
      64;  // limited as the distance takes quadratic time and names come from strangers' files
  if (word.size() > kLongestName) return {};
  const std::string wanted = lowered(word);
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::size_t best = std::numeric_limits<std::size_t>::max();
  std::string nearest;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(wanted, lowered(name));
    if (distance <= limit && distance < best) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
  const std::string name = nearest_name(word, known);
  return name.empty() ? std::string() : "; did you mean \"" + name + "\"?";
}

std::string did_you_mean_or_known(std::string_view word, std::span<const std::string> known) {
  const std::string hint = did_you_mean(word, known);
  return hint.empty() ? fmt::format("; it is {}", fmt::join(known, ", ")) : hint;
}

}  // namespace distgrad
