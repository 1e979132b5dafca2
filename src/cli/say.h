// Prints what commands say to people: base/output.h, formatted.
#pragma once

#include <fmt/format.h>

#include "base/output.h"

namespace distgrad {

template <class... Parts>
void say(fmt::format_string<Parts...> format, Parts&&... parts) {
  put(fmt::format(format, std::forward<Parts>(parts)...));
}

// Prints to standard error.
template <class... Parts>
void complain(fmt::format_string<Parts...> format, Parts&&... parts) {
  put_error(fmt::format(format, std::forward<Parts>(parts)...));
}

}  // namespace distgrad
