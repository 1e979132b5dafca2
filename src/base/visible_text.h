// Makes foreign text safe to show on a terminal or in a job's log. Whatever a stranger's file, a
// rank or a user's exception says, it can neither move the cursor, turn the direction of writing,
// hide, nor give a log's reader commands.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace distgrad {

enum class Lines {
  kKept,
  kEscaped
};  // what happens to line breaks and tabs, which are escaped in names

inline constexpr std::size_t kWhole = std::string_view::npos;

// Turns control and format characters and bytes that are no UTF-8 into "\x1b" or "\u202e". Puts
// "..." after `longest` characters.
std::string visible_text(std::string_view text, Lines lines, std::size_t longest = kWhole);

// Changes every line that GitHub's or Azure's runner would take for a command: "::" where a line
// begins, behind white space of any kind, and "##[" and "##vso[" anywhere. The escapes are JSON's,
// so a JSON text keeps its meaning. `line_so_far` is what stands before the text on its first line.
std::string without_commands(std::string_view text, std::string_view line_so_far = "");

}  // namespace distgrad
