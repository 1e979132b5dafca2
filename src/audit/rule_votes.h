// Finds which backward rule the cases of an audit support.
#pragma once

#include <string>
#include <vector>

#include "audit/outcome.h"

namespace distgrad {

enum class Losses { kOwn, kOne };

// Returns the rule that explains the most mismatches under such losses, or "".
std::string most_named_rule(const std::vector<TrialResult>& results, Losses losses);

// Returns the first failing case whose first finding is the rule, else one that names it at all,
// else the first one, or null.
const TrialResult* smallest_failure(const std::vector<TrialResult>& results, CollectiveKind kind,
                                    const std::string& objective, const std::string& rule);

// Returns the finding's text, if the case has that rule.
std::string text_of(const CaseResult& result, const std::string& rule);

// Returns true if the subject gets the program's own tensor and no copy of it.
bool shares_operand(const Trial& trial);
bool is_on_request(const Trial& trial);
// Returns false where every objective fits and nothing shows: on one rank, and without elements.
bool tells_conventions_apart(const TrialResult& result);

}  // namespace distgrad
