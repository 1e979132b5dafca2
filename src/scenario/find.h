// Finds the scenario files that the command line's PATHs mean.
#pragma once

#include <string>
#include <vector>

#include "scenario/case_id.h"

namespace distgrad {

// Takes files, folders (all *.json below, sorted by path; links to folders are not followed) and
// names of cases. A file named twice in the same way comes once. A path that does not exist is
// passed on, so that load_scenario() reports it and the good files still run. Throws UserError for
// a misspelt field and a folder that cannot be read.
std::vector<CaseSelection> find_scenarios(const std::vector<std::string>& paths);

}  // namespace distgrad
