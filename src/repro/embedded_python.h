// Holds the Python files that the build embeds (tools/cmake/embed.cmake).
#pragma once

#include <string_view>

namespace distgrad {

extern const std::string_view kEmbeddedPython;

}  // namespace distgrad
