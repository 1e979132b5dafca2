// What parameters with the same mistake have in common.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/explain.h"

namespace distgrad::dumps {

// "layers.2.w" before "layers.10.w".
bool natural_less(std::string_view a, std::string_view b);

// "layers.*.w": components that are numbers are stars.
std::string pattern_of(const std::string& name);

struct ResultGroup {
  std::string headline;
  std::vector<const ParameterResult*> members;  // worst first; in the model's order where nothing
                                                // explains them or each has words of its own
  std::vector<std::string> patterns;            // "all 32 of layers.*.norm.weight", "layers.3.w"
  std::string common;  // "exactly the parameters that are Replicate along tp"; may be empty

  bool each_in_its_own_words() const;
};

// The parameters that are not right, those with the same mistake together; what is worst first,
// what is merely close or cannot be judged last.
std::vector<ResultGroup> groups_of(std::span<const ParameterResult> results);

}  // namespace distgrad::dumps
