// Standard output and error, as all commands write to them.
#pragma once

#include <string_view>

namespace distgrad {

// What is said to people: no line of it can be taken for a command by a runner that reads the log
// (visible_text.h), whatever foreign words are in it.
void put(std::string_view text);
void put_error(std::string_view text);

// What holds no foreign words, or commands of ours: as it is.
void put_raw(std::string_view text);

// Whether all of it has arrived; else why not.
std::string_view output_problem();

}  // namespace distgrad
