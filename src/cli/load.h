// Turns what the command line names into the cases to run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/report.h"
#include "model/scenario.h"
#include "scenario/case_id.h"

namespace distgrad {

struct Loaded {
  std::vector<std::unique_ptr<Scenario>> scenarios;  // the cases point into these
  std::vector<Case> cases;
  std::vector<InvalidFile> invalid;
};

// Loads files, folders and cases (by default the folder "scenarios"). Invalid files are left out
// and reported in `invalid`. Each case comes once. Throws UserError for a missing path.
Loaded load_cases(const std::vector<std::string>& paths, const Overrides& overrides);

// Writes a line each to standard error, with the carets of expressions.
void report_invalid(std::span<const InvalidFile> invalid);

// Lists, for a command that takes one case, how to call it for the first of them, a line each.
std::string choices_text(std::string_view command, std::span<const Case>);

}  // namespace distgrad
