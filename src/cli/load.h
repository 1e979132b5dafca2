// From what the command line names to the cases to be run.
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

// Files, folders and cases (none: the folder "scenarios"); files that are invalid are left out and
// reported in `invalid`. Each case comes once. Throws UserError for a path that is not there.
Loaded load_cases(const std::vector<std::string>& paths, const Overrides& overrides);

// A line each on standard error, with the carets of expressions.
void report_invalid(std::span<const InvalidFile> invalid);

// Where a command takes one case: a line each of how it is called for the first of them.
std::string choices_text(std::string_view command, std::span<const Case>);

}  // namespace distgrad
