// Finds the known name that a misspelt one was probably meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace distgrad {

// The nearest of `known` within an edit distance (transpositions count one) of a third of the
// word's length, at least 1; empty when none is near. Ties go to the first.
std::string nearest_name(std::string_view word, std::span<const std::string> known);

// "; did you mean \"NAME\"?", or the empty string when nothing is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

// The same, or "; it is NAME, NAME" with all of them.
std::string did_you_mean_or_known(std::string_view word, std::span<const std::string> known);

}  // namespace distgrad
