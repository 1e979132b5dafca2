// Finds the scenario files that the command line's PATHs mean.
#pragma once

#include <string>
#include <vector>

#include "scenario/case_id.h"

namespace distgrad {

// Each PATH is a file, a folder (all *.json below it, sorted by path; links to folders are not
// followed) or the name of cases. The same file named twice in the same way comes once. Throws
// UserError where there is no such file or folder.
std::vector<CaseSelection> find_scenarios(const std::vector<std::string>& paths);

}  // namespace distgrad
