// Returns the JSON Schema of the JSON report, for validators and for authors of readers.
#pragma once

#include <nlohmann/json.hpp>

namespace distgrad {

nlohmann::ordered_json report_schema();

}  // namespace distgrad
