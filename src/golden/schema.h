// The JSON Schema of golden files.
#pragma once

#include <nlohmann/json.hpp>

namespace distgrad::golden {

nlohmann::ordered_json schema();

}  // namespace distgrad::golden
