// Finds the scenario files that the command line's PATHs mean.
#pragma once

#include <string>
#include <vector>

#include "scenario/case_id.h"

namespace distgrad {

// Each PATH is a file, a folder (all *.json below it, sorted by path; links to folders are not
// followed) or the name of cases. The same file named twice in the same way comes once. A path that
// does not exist is passed on: load_scenario() tells it like any other bad file, and the good ones
// beside it still run. Throws UserError for a misspelt field and a folder that cannot be read.
std::vector<CaseSelection> find_scenarios(const std::vector<std::string>& paths);

}  // namespace distgrad
