// Reduces a scenario file to what decides its truth, which tells if a golden file still fits it.
#pragma once

#include <string>
#include <string_view>

namespace distgrad::golden {

// Takes the `text` of a scenario file that parse_scenario() accepts. Drops `$schema`, `note`,
// `subjects`, `timeout_s` and white space, spells numbers in their shortest form and sorts keys,
// except those of `mesh` and `inputs`, whose order has a meaning.
std::string canonical_form(std::string_view text);

}  // namespace distgrad::golden
