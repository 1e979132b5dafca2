// Uses a first look at all parameters to explain some that say less by themselves.
#pragma once

#include <vector>

#include "dumps/explain.h"

namespace distgrad::dumps {

struct SecondLook {
  // Has nameless factors of parameters with many numbers: a single number that is wrong by one of
  // them, too, is no coincidence.
  std::vector<double> shown;
  std::vector<ShownSum> sums;
  // Holds the nameless factor of most wrong parameters, as clipping by another norm leaves it.
  // Others are multiplied by it beside their own mistake. 1 means that there is none.
  double common = 1;
};
SecondLook second_look(const std::vector<ParameterResult>&);

// Returns true if what others showed may say more about it.
bool may_say_more(const ParameterResult&, const SecondLook&);

// `second` was made without the common factor. Returns true if it says more than the first, which
// it then replaces, as something that is true beside that factor.
bool says_more(const ParameterResult& first, const ParameterResult& second);
ParameterResult beside_common(ParameterResult second, const ParameterResult& first, double common);

}  // namespace distgrad::dumps
