// The JSON Schema of the JSON report, for validators and for people who write a reader.
#pragma once

#include <nlohmann/json.hpp>

namespace distgrad {

nlohmann::ordered_json report_schema();

}  // namespace distgrad
