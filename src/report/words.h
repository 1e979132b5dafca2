// Small pieces of text that every report is made of: numbers, places, wrapped prose, quoted words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/number_text.h"
#include "model/array.h"

namespace distgrad {

// Nested as in Python: "20", "[1, 2]", "[[1, 2], [3, 4]]".
std::string array_text(const Array& array, int digits = kShortest);

inline constexpr std::string_view kUncolored = "\033[0m";  // ends a terminal's color

// Tensors of up to so many elements are shown whole.
inline constexpr std::int64_t kWholeElements = 8;

// "[0, 3]"; "" for a scalar's only element.
std::string index_text(std::span<const std::int64_t> index);

std::string seconds_text(double seconds);  // "0.004 s", "12 s", "2 min 5 s"

// Columns on a terminal: code points, as names here have no wide ones.
std::size_t width_of(std::string_view text);
std::string padded(std::string_view text, std::size_t width);       // text first
std::string padded_left(std::string_view text, std::size_t width);  // spaces first

// Broken at spaces so that no line is longer than `width` where words permit, every line indented
// and ended. The text's own line breaks are kept.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

// Every line indented and ended, none broken.
std::string indented(std::string_view text, std::size_t indent);

// The first equations of a formula that has many ("x̄_0[0] = 2 ȳ_1[0]; ..."), and how many follow;
// what its letters stand for stays. JSON reports have it whole.
std::string short_formula(const std::string& formula);

// Without control characters other than newline and tab: a rank's output and a stranger's file
// names end up on terminals.
std::string for_terminal(std::string_view text);

// The same of a name, which has a line of its own: a line break in it could tell of a case that
// there is not.
std::string on_one_line(std::string_view text);

// For a POSIX shell, always in single quotes.
std::string shell_quoted(std::string_view word);

// Likewise, in quotes only where it needs them.
std::string as_typed(std::string_view word);

}  // namespace distgrad
