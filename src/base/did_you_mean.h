// Finds the known name that a misspelt one was probably meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace distgrad {

// Returns the nearest of `known` within an edit distance of a third of the word's length, but at
// least 1, where a transposition counts one. Empty when none is near. The first of several wins.
std::string nearest_name(std::string_view word, std::span<const std::string> known);

// Returns "; did you mean \"NAME\"?", or the empty string when nothing is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

// Returns the same, or when nothing is near "; it is NAME, NAME" with all of them.
std::string did_you_mean_or_known(std::string_view word, std::span<const std::string> known);

}  // namespace distgrad
