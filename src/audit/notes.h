// What is said below an audit's table of the cases that came to no verdict, and of backwards that
// fail.
#pragma once

#include <string>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

// One of each kind and reason, among those that count for the objective.
std::vector<Note> notes_of(const std::vector<TrialResult>& results, CollectiveKind kind,
                           const std::string& objective);

}  // namespace distgrad
