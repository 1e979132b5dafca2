// Adds up the cases of a run, and makes its exit code.
#pragma once

#include <span>

#include "base/exit_code.h"
#include "model/report.h"

namespace distgrad {

// Counts one more case, as summary_of() does.
void add_to(Summary&, const CaseResult&);

// Counts each case once: skipped and disputed ones that the file does not expect as such, all
// others in as_expected, not_as_expected or broken. elapsed_s stays 0.
Summary summary_of(std::span<const CaseResult>);

// Returns the highest of not as expected, user's error (an invalid file) and broken. If nothing ran
// it is kNothingRan, unless `allow_empty`.
ExitCode exit_code_of(const Report&, bool allow_empty);

}  // namespace distgrad
