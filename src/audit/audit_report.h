// Turns an audit into the report that other formats start from: HTML, JUnit, Markdown, SARIF.
#pragma once

#include <string>
#include <vector>

#include "audit/judgement.h"
#include "model/report.h"

namespace distgrad {

// Makes a case of each trial that counts for its row's convention, and a picture of collectives by
// aspects. What is refused, raises or is disputed is not judged; `unusable` says why functions
// cannot be called. The cases' scenarios are those of the judgements' results. `command` and
// `summary.elapsed_s` stay empty.
Report audit_report(const std::vector<Judgement>& judgements,
                    const std::vector<std::string>& unusable);

}  // namespace distgrad
