// Makes the small pieces of text of every report: numbers, places, wrapped prose, quoted words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/number_text.h"
#include "model/array.h"

namespace distgrad {

// Nests as Python does: "20", "[1, 2]", "[[1, 2], [3, 4]]".
std::string array_text(const Array& array, int digits = kShortest);

inline constexpr std::string_view kUncolored = "\033[0m";  // ends a terminal's color

// Tensors of up to this many elements are shown whole.
inline constexpr std::int64_t kWholeElements = 8;

// Returns "[0, 3]", or "" for a scalar's only element.
std::string index_text(std::span<const std::int64_t> index);

std::string seconds_text(double seconds);  // "0.004 s", "12 s", "2 min 5 s"

// Returns columns on a terminal, by code points, as names here have no wide ones.
std::size_t width_of(std::string_view text);
std::string padded(std::string_view text, std::size_t width);       // text first
std::string padded_left(std::string_view text, std::size_t width);  // spaces first

// Breaks text at spaces so that no line is longer than `width` if words permit, and indents and
// ends every line. Keeps the text's own line breaks.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

// Indents and ends every line, and breaks none.
std::string indented(std::string_view text, std::size_t indent);

// Returns the first equations of a long formula ("x̄_0[0] = 2 ȳ_1[0]; ..."), how many follow, and
// what its letters stand for. JSON reports have it whole.
std::string short_formula(const std::string& formula);

// Removes control characters except newline and tab, since a rank's output and a stranger's file
// names end up on terminals.
std::string for_terminal(std::string_view text);

// Does the same for a name, which has a line of its own: a line break in it could fake a case.
std::string on_one_line(std::string_view text);

// Quotes for a POSIX shell, always with single quotes.
std::string shell_quoted(std::string_view word);

// Quotes only if necessary.
std::string as_typed(std::string_view word);

}  // namespace distgrad
