// Returns the JSON Schema (draft-07) of the scenario format, for editors and validators. It says
// less than the parser checks, since a schema cannot count ranks.
#pragma once

#include <string>

namespace distgrad {

std::string scenario_schema();

}  // namespace distgrad
