// Names the layouts, for scenario files, messages and reports.
#pragma once

#include <array>
#include <string_view>

#include "model/program.h"

namespace distgrad {

// The names are in the order of Layout::Kind.
inline constexpr std::array<std::string_view, 4> kLayoutNames = {"local", "replicate", "invariant",
                                                                 "shard"};

constexpr std::string_view layout_name(Layout::Kind kind) {
  return kLayoutNames[static_cast<std::size_t>(kind)];
}

}  // namespace distgrad
