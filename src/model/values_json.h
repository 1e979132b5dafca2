// Writes values in JSON documents for other programs: nested lists, and "nan", "inf" and "-inf" for
// what JSON cannot express. Include it in writers only, since nlohmann/json is costly to compile.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "model/array.h"

namespace distgrad {

nlohmann::ordered_json number_json(double);
nlohmann::ordered_json numbers_json(std::span<const double>);
// Writes an array without dimensions as a number. The shape of an array without elements may be
// lost.
nlohmann::ordered_json nested_json(const Array&);

}  // namespace distgrad
