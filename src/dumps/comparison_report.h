// Writes what `distgrad compare` prints and writes; docs/compare.md describes both.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dumps/compare_dumps.h"

namespace distgrad::dumps {

struct ComparisonTextOptions {
  bool full = false;  // shows every parameter, right ones included
  std::size_t width = 100;
};

std::string comparison_text(const DumpComparison&, const ComparisonTextOptions&);

// Say, for a parameter that is not right, what to look at, in sentences, and which element is
// furthest off.
std::string advice_of(const ParameterResult&);
std::string worst_text(const ParameterResult&);

nlohmann::ordered_json comparison_json(const DumpComparison&);

}  // namespace distgrad::dumps
