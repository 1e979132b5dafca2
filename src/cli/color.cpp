#include "cli/color.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace distgrad {

bool wants_color(Color color) {
  if (color != Color::kAuto) return color == Color::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool refused = (no_color != nullptr && *no_color != '\0') ||
                       (terminal != nullptr && std::string_view(terminal) == "dumb");
  return ::isatty(STDOUT_FILENO) == 1 && !refused;
}

}  // namespace distgrad
