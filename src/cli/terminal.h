// Finds the width of the terminal that standard output goes to.
#pragma once

#include <cstddef>

namespace distgrad {

// Returns columns, from 60 to 200: $COLUMNS if it is set, as a user or a shell exports it, else the
// terminal's. For a file or a pipe, whose text must not depend on a window, it is `otherwise`.
std::size_t terminal_width(std::size_t otherwise);

}  // namespace distgrad
