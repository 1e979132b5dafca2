// How the cases of a run add up, and the exit code they make.
#pragma once

#include <span>

#include "base/exit_code.h"
#include "model/report.h"

namespace distgrad {

// Counts one more case, as summary_of() does.
void add_to(Summary&, const CaseResult&);

// Each case counts once: skipped and disputed ones that the file does not expect there, all others
// in as_expected, not_as_expected or broken. elapsed_s is left 0.
Summary summary_of(std::span<const CaseResult>);

// Of not as expected, user's error (an invalid file) and broken the highest; where nothing ran
// kNothingRan, unless `allow_empty`.
ExitCode exit_code_of(const Report&, bool allow_empty);

}  // namespace distgrad
