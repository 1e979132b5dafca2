// How wide the terminal is that standard output goes to.
#pragma once

#include <cstddef>

namespace distgrad {

// In columns, from 60 to 200: $COLUMNS where it is set, as a user or a shell exports it; else the
// terminal's; `otherwise` where it is a file or a pipe, whose text must not depend on a window.
std::size_t terminal_width(std::size_t otherwise);

}  // namespace distgrad
