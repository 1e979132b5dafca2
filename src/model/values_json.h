// Values in the JSON documents that are written for others: nested lists, and what JSON has no
// number for as "nan", "inf" and "-inf". Included by writers only: nlohmann/json is costly to
// compile.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "model/array.h"

namespace distgrad {

nlohmann::ordered_json number_json(double);
nlohmann::ordered_json numbers_json(std::span<const double>);
// A number for an array without dimensions. The shape of one without elements may be lost.
nlohmann::ordered_json nested_json(const Array&);

}  // namespace distgrad
