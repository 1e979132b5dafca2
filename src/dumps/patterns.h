// Finds what parameters with the same mistake have in common.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/explain.h"

namespace distgrad::dumps {

// Orders "layers.2.w" before "layers.10.w".
bool natural_less(std::string_view a, std::string_view b);

// Returns "layers.*.w": components that are numbers become stars.
std::string pattern_of(const std::string& name);

struct ResultGroup {
  std::string headline;
  std::vector<const ParameterResult*> members;  // worst first, or in the model's order
  std::vector<std::string> patterns;            // "all 32 of layers.*.norm.weight", "layers.3.w"
  std::string common;  // "exactly the parameters that are Replicate along tp"; may be empty

  bool each_in_its_own_words() const;
  // Returns true if nothing explains the members, or each has its own words.
  bool is_in_order() const;
};

// Groups the parameters that are not right by mistake, the worst first. Those that are merely close
// or cannot be judged come last.
std::vector<ResultGroup> groups_of(std::span<const ParameterResult> results);

}  // namespace distgrad::dumps
