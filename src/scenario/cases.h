// The cases that a scenario stands for, and the program of each.
#pragma once

#include <string_view>
#include <vector>

#include "model/scenario.h"
#include "scenario/case_id.h"

namespace distgrad {

// In the order subject, world_size, dtype, backend, objective, the last varying fastest.
// `torch_version` decides `when`. The cases point to the scenario, which must outlive them.
std::vector<Case> expand(const Scenario&, const Overrides&, std::string_view torch_version);
std::vector<Case> expand(Scenario&&, const Overrides&, std::string_view torch_version) = delete;

// Whether its ranks are Python's: because of its subject, or as its program calls code.
bool has_python_ranks(const Case& which);

// Whether some step is code that is not distgrad's.
bool calls_code(const Case& which);

// What `which` runs; a case with a skip_reason has no program. The file's truth is in it as far as
// it applies.
Program program_for(const Case& which);
Program program_for(const Scenario&, int world_size, DType);

}  // namespace distgrad
