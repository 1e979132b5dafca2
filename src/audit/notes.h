// Writes notes below an audit's table, on cases without a verdict and backwards that fail.
#pragma once

#include <string>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

// Returns one note of each kind and reason, for cases that count for the objective.
std::vector<Note> notes_of(const std::vector<TrialResult>& results, CollectiveKind kind,
                           const std::string& objective);

}  // namespace distgrad
