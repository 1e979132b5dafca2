// An audit as the report that other formats are made of: HTML, JUnit, Markdown, SARIF.
#pragma once

#include <string>
#include <vector>

#include "audit/judgement.h"
#include "model/report.h"

namespace distgrad {

// Each case that counts for its row's convention, and a picture of collectives by aspects. What is
// refused, raises or is disputed is not judged; `unusable` says why functions cannot be called. The
// cases' scenarios are those that the judgements' results point to. `command` and
// `summary.elapsed_s` are left empty.
Report audit_report(const std::vector<Judgement>& judgements,
                    const std::vector<std::string>& unusable);

}  // namespace distgrad
