// Writes pieces of the findings' sentences.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/evidence.h"
#include "judge/scaling.h"

namespace distgrad {

std::string number_phrase(double value);                        // "20", "0.333333", "nan"
std::string array_phrase(const Array& array);                   // "20", "[1, 2, ... 5 more]"
std::string index_phrase(std::span<const std::int64_t> index);  // " at [0, 3]"; "" for a scalar

// Writes one element of the array, or all of it if the index does not fit.
std::string element_phrase(const Array& array, const std::vector<std::int64_t>& index);

// Says what was observed (absent: no gradient) and what is true at the first difference, which
// there must be: an element, or the shape of a tensor whose shape does not fit.
struct AtFirstDifference {
  std::optional<std::string> observed;
  std::string truth;
};
AtFirstDifference at_first_difference(const GradientComparison&);

// Returns "a", "a and b" or "a, b and c".
std::string enumeration(const std::vector<std::string>& words);

// Returns "on every rank", "on rank 2", "on ranks 0 and 3" or, for many, "on 12 of 64 ranks".
std::string on_ranks(const std::vector<int>& ranks, int world_size);

// Returns, without a full stop, "The gradients are 1/2 of the truth on every rank", "The gradient
// of w is zero on every rank" or "The gradients of w and b differ from the truth on rank 1".
std::string how_they_differ(const Evidence&, const std::optional<Scaling>&);

// Says what the objective counts, e.g. "every rank's loss counts"; explains one by axis.
std::string meaning_of_objective(std::string_view spelled);

}  // namespace distgrad
