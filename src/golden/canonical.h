// A scenario file reduced to what decides its truth, so that a golden file knows whether it still
// fits.
#pragma once

#include <string>
#include <string_view>

namespace distgrad::golden {

// `text`: a scenario file that parse_scenario() accepts. Without `note`, `subjects` and
// `timeout_s`, without white space, numbers in their shortest spelling, keys sorted, except those
// of `mesh` and `inputs`, whose order has a meaning.
std::string canonical_form(std::string_view text);

}  // namespace distgrad::golden
