// A scenario that tells apart what a case's own data cannot: the file's program, changed until the
// explanations that lead to the same gradients there lead to different ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/verify.h"
#include "diagnose/hypotheses.h"
#include "report/explain.h"

namespace distgrad {

// "y: identity", "y: divided; z: own_slice", "w: sync forgotten".
std::string label_of(const Hypothesis&);

// `rivals`, two or more, all reproduce what was observed. Tries a number of changes by simulation and
// takes the first that separates all, else the one that separates most. Costs a replay for each
// rival and change. Reads the case's file once more.
SeparatingScenario separating_scenario(const Conclusion&, const std::vector<Hypothesis>& rivals);

}  // namespace distgrad
