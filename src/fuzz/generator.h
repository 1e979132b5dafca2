// Random programs: from a seed, an index and what they may contain to a scenario. Links no torch: shapes and magnitudes are
// followed without computing anything, so that every program is a valid scenario of moderate numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "fuzz/choices.h"

namespace distgrad::fuzz {

// The same on every machine. Has no note and no subjects.
nlohmann::ordered_json draw_program(const Choices&, std::uint64_t seed, std::uint64_t index);

}  // namespace distgrad::fuzz
