// Which backward rule the cases of an audit speak for.
#pragma once

#include <string>
#include <vector>

#include "audit/outcome.h"

namespace distgrad {

enum class Losses { kOwn, kOne };

// The rule that explains the most mismatches under such losses; "" where there are none.
std::string most_named_rule(const std::vector<TrialResult>& results, Losses losses);

// The first failing case of which the rule is the first finding, else one that names it at all,
// else the first; null: there is none.
const TrialResult* smallest_failure(const std::vector<TrialResult>& results, CollectiveKind kind,
                                    const std::string& objective, const std::string& rule);

// What is said of it, where the case has that rule.
std::string text_of(const CaseResult& result, const std::string& rule);

// Where the case's subject gets the program's own tensor and no copy of it.
bool shares_operand(const Trial& trial);
bool is_on_request(const Trial& trial);
// One rank is every objective at once and shows nothing about the others.
bool tells_conventions_apart(const TrialResult& result);

}  // namespace distgrad
