// What a first look at all parameters tells about some that by themselves tell less.
#pragma once

#include <vector>

#include "dumps/explain.h"

namespace distgrad::dumps {

struct SecondLook {
  // Factors without a name, each of parameters with numbers enough: a single number that is wrong
  // by one of them, too, is no chance.
  std::vector<double> shown;
  std::vector<ShownSum> sums;
  // What most wrong parameters are multiplied by and nothing names, as clipping by another norm
  // leaves it: others are multiplied by it beside their own mistake. 1: there is none.
  double common = 1;
};
SecondLook second_look(const std::vector<ParameterResult>&);

// Whether what others showed may say more of it.
bool may_say_more(const ParameterResult&, const SecondLook&);

// `second`: without the common factor. Whether it says more than the first, which it then replaces,
// as something that is true beside that factor.
bool says_more(const ParameterResult& first, const ParameterResult& second);
ParameterResult beside_common(ParameterResult second, const ParameterResult& first, double common);

}  // namespace distgrad::dumps
