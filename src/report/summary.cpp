#include "report/summary.h"

namespace distgrad {

void add_to(Summary& sum, const CaseResult& c) {
  ++sum.cases;
  if (c.broken)
    ++sum.broken;
  else if (!c.as_expected)
    ++(c.verdict == Verdict::kDisputed ? sum.disputed : sum.skipped);
  else
    ++(*c.as_expected ? sum.as_expected : sum.not_as_expected);
}

Summary summary_of(std::span<const CaseResult> cases) {
  Summary sum;
  for (const CaseResult& c : cases) add_to(sum, c);
  return sum;
}

ExitCode exit_code_of(const Report& report, bool allow_empty) {
  const Summary& sum = report.summary;
  if (sum.broken > 0) return ExitCode::kBroken;
  if (!report.invalid.empty()) return ExitCode::kUserError;
  if (sum.not_as_expected > 0) return ExitCode::kNotAsExpected;
  const bool nothing_ran = sum.as_expected == 0 && sum.disputed == 0;
  return nothing_ran && !allow_empty ? ExitCode::kNothingRan : ExitCode::kAsExpected;
}

}  // namespace distgrad
