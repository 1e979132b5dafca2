// What `distgrad compare` prints and writes; docs/compare.md describes both.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dumps/compare_dumps.h"

namespace distgrad::dumps {

struct ComparisonTextOptions {
  bool full = false;  // every parameter, the right ones too
  std::size_t width = 100;
};

std::string comparison_text(const DumpComparison&, const ComparisonTextOptions&);

// What to look at, in sentences; and the element that is furthest off. Both of a parameter that is
// not right.
std::string advice_of(const ParameterResult&);
std::string worst_text(const ParameterResult&);

nlohmann::ordered_json comparison_json(const DumpComparison&);

}  // namespace distgrad::dumps
