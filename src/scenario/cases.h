// Expands a scenario into the cases that it stands for, and makes the program of each.
#pragma once

#include <string_view>
#include <vector>

#include "model/scenario.h"
#include "scenario/case_id.h"

namespace distgrad {

// Returns cases in the order subject, world_size, dtype, backend, objective, the last varying
// fastest. `torch_version` decides `when`. The cases point to the scenario, which must outlive
// them.
std::vector<Case> expand(const Scenario&, const Overrides&, std::string_view torch_version);
std::vector<Case> expand(Scenario&&, const Overrides&, std::string_view torch_version) = delete;

// Returns true if the case's ranks are Python's, because of its subject or of code that its program
// calls.
bool has_python_ranks(const Case& which);

// Returns true if some step calls code that is not distgrad's.
bool calls_code(const Case& which);

// Returns the program that `which` runs, with as much of the file's truth as applies. A case with a
// skip_reason has no program.
Program program_for(const Case& which);
Program program_for(const Scenario&, int world_size, DType);

}  // namespace distgrad
