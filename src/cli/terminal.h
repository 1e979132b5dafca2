// How wide the terminal is that standard output goes to.
#pragma once

#include <cstddef>

namespace distgrad {

// In columns, no more than a reader's eye follows; `otherwise` where it is a file or a pipe, whose
// text must not depend on a window.
std::size_t terminal_width(std::size_t otherwise);

}  // namespace distgrad
