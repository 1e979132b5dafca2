// Draws random programs: it makes a scenario from a seed, an index and what it may contain. It
// links no torch: it follows shapes and magnitudes without computing anything, so that every
// program is a valid scenario of moderate numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "fuzz/choices.h"

namespace distgrad::fuzz {

// Returns the same on every machine, without a note or subjects.
nlohmann::ordered_json draw_program(const Choices&, std::uint64_t seed, std::uint64_t index);

}  // namespace distgrad::fuzz
