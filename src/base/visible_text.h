// Text that is not ours, as it may be shown on a terminal or in a job's log: whatever a stranger's
// file, a rank or a user's exception says, it can neither move the cursor nor turn the direction of
// writing, nor hide, nor give a log's reader commands.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace distgrad {

enum class Lines {
  kKept,
  kEscaped
};  // line breaks and tabs; escaped in names, which have no line of their own

inline constexpr std::size_t kWhole = std::string_view::npos;

// Control and format characters and what is no UTF-8 become "\x1b", "\u202e"; after `longest`
// characters comes "...".
std::string visible_text(std::string_view text, Lines lines, std::size_t longest = kWhole);

// The text with every line that GitHub's or Azure's runner would take for a command made one that
// it does not: "::" where a line begins, behind white space of any kind, and "##[" and "##vso["
// anywhere. The escapes are JSON's, so that a JSON text means what it meant. `line_so_far`: what
// stands before the text on its first line.
std::string without_commands(std::string_view text, std::string_view line_so_far = "");

}  // namespace distgrad
