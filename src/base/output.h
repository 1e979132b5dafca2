// Writes to standard output and error for all commands.
#pragma once

#include <string_view>

namespace distgrad {

// Writes text for people. A CI runner that reads the log cannot take any line of it for a command
// (visible_text.h), whatever foreign words it has.
void put(std::string_view text);
void put_error(std::string_view text);

// Writes text without foreign words, or commands of ours, unchanged.
void put_raw(std::string_view text);

// Returns an empty text if all of standard output was written; else why not.
std::string_view output_problem();

}  // namespace distgrad
