#include "judge/phrases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/number_text.h"
#include "judge/closeness.h"

namespace distgrad {
namespace {

constexpr std::size_t kShownElements = 6;
constexpr std::size_t kListedRanks = 8;

// Returns true if every gradient that differs is zero, as off the root of a reduce, while some rank
// has what it should.
bool are_zero_where_they_differ(const Evidence& evidence) {
  const std::vector<int> differing = evidence.differing_ranks();
  if (static_cast<int>(differing.size()) == evidence.program().world_size) return false;
  return std::all_of(
      evidence.parts().begin(), evidence.parts().end(), [&](const ComparedPart& part) {
        const bool differs = std::any_of(part.ranks.begin(), part.ranks.end(), [&](int rank) {
          return std::find(differing.begin(), differing.end(), rank) != differing.end();
        });
        return !differs ||
               (part.observed && std::ranges::all_of(part.observed->values(),
                                                     [](double value) { return value == 0; }));
      });
}

std::int64_t element_of(const Shape& shape, const std::vector<std::int64_t>& index) {
  std::int64_t element = 0;
  for (std::size_t d = 0; d < index.size(); ++d) element = element * shape[d] + index[d];
  return element;
}

std::string names_of(const Evidence& evidence, const std::vector<std::size_t>& inputs) {
  std::vector<std::string> names;
  for (const std::size_t i : inputs) names.push_back(evidence.comparison().gradients[i].input);
  return enumeration(names);
}

}  // namespace

std::string number_phrase(double value) { return number_text(value, 6); }

std::string array_phrase(const Array& array) {
  if (array.shape().empty()) return number_phrase(array[0]);
  std::string text;
  const auto values = array.values();
  const std::size_t shown = std::min(kShownElements, values.size());
  for (std::size_t i = 0; i < shown; ++i) text += (i ? ", " : "") + number_phrase(values[i]);
  if (shown < values.size()) text += fmt::format(", ... {} more", values.size() - shown);
  return "[" + text + "]";
}

std::string index_phrase(std::span<const std::int64_t> index) {
  return index.empty() ? "" : fmt::format(" at [{}]", fmt::join(index, ", "));
}

std::string enumeration(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

std::string on_ranks(const std::vector<int>& ranks, int world_size) {
  if (static_cast<int>(ranks.size()) == world_size)
    return world_size == 1 ? "on rank 0" : "on every rank";
  if (ranks.size() > kListedRanks)
    return fmt::format("on {} of {} ranks", ranks.size(), world_size);
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return fmt::format("on {} {}", ranks.size() == 1 ? "rank" : "ranks", enumeration(words));
}

std::string element_phrase(const Array& array, const std::vector<std::int64_t>& index) {
  if (array.size() == 0 || index.size() != array.shape().size()) return array_phrase(array);
  return number_phrase(array[element_of(array.shape(), index)]);
}

AtFirstDifference at_first_difference(const GradientComparison& g) {
  const auto rank = static_cast<std::size_t>(g.first_difference->rank);
  const bool by_rank = !g.truth_by_rank.empty();
  const std::optional<Array>& truth = by_rank ? g.truth_by_rank[rank] : g.truth_full;
  const std::optional<Array>& observed =
      !by_rank && g.observed_full ? g.observed_full : g.observed_by_rank[rank];
  const bool fit = !observed || !truth || observed->shape() == truth->shape();
  const auto text = [&](const Array& array) {
    return fit ? element_phrase(array, g.first_difference->index)
               : fmt::format("shape [{}]", fmt::join(array.shape(), ", "));
  };
  AtFirstDifference at{std::nullopt, truth ? (fit ? "" : "of ") + text(*truth) : "unknown"};
  if (observed) at.observed = text(*observed);
  return at;
}

std::string how_they_differ(const Evidence& evidence, const std::optional<Scaling>& scaling) {
  const std::vector<std::size_t> inputs = evidence.differing_inputs();
  const bool all =
      scaling ? scaling->all_inputs : inputs.size() == evidence.comparison().gradients.size();
  const bool one = inputs.size() == 1;
  const std::string subject =
      all ? "The gradients"
          : (one ? "The gradient of " : "The gradients of ") + names_of(evidence, inputs);
  const std::string be = all || !one ? "are" : "is";
  const int world_size = evidence.program().world_size;
  if (scaling && scaling->common) {
    const std::string where = world_size == 1 ? "" : " on every rank";
    if (*scaling->common == 0) return fmt::format("{} {} zero{}", subject, be, where);
    return fmt::format("{} {} {} the truth{}", subject, be,
                       factor_of_exact(evidence.program(), *scaling->common).amount, where);
  }
  const std::string where = on_ranks(evidence.differing_ranks(), world_size);
  if (are_zero_where_they_differ(evidence))
    return fmt::format("{} {} zero {}, and right elsewhere", subject, be, where);
  return fmt::format("{} differ{} from the truth {}", subject, be == "is" ? "s" : "", where);
}

std::string meaning_of_objective(std::string_view spelled) {
  if (spelled == "sum") return "every rank's loss counts";
  if (spelled == "mean") return "the average of the ranks' losses, as in DistributedDataParallel";
  if (spelled == "replicated") return "one loss, computed on every rank";
  if (spelled.starts_with("rank:"))
    return fmt::format("the loss of rank {} alone", spelled.substr(5));
  std::vector<std::string> words;
  while (!spelled.empty()) {
    const std::size_t end = std::min(spelled.find('+'), spelled.size());
    const std::string_view entry = spelled.substr(0, end);
    const std::size_t equals = entry.find('=');
    const std::string_view axis = entry.substr(0, equals), word = entry.substr(equals + 1);
    const std::string_view meaning = word == "sum"    ? "summed over "
                                     : word == "mean" ? "averaged over "
                                                      : "one loss along ";
    words.push_back(std::string(meaning) + std::string(axis));
    spelled.remove_prefix(std::min(end + 1, spelled.size()));
  }
  return enumeration(words);
}

}  // namespace distgrad
