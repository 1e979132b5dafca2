// Describes golden files as a JSON Schema.
#pragma once

#include <nlohmann/json.hpp>

namespace distgrad::golden {

nlohmann::ordered_json schema();

}  // namespace distgrad::golden
