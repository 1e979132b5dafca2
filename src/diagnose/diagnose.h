// Why the gradients are what they are: explanations of a comparison, in sentences for somebody who
// has read none of our documents.
#pragma once

#include <vector>

#include "diagnose/evidence.h"
#include "diagnose/replayer.h"
#include "diagnose/rerun.h"

namespace distgrad {

// The most specific first; explanations that the data cannot tell apart are all given. Empty where
// everything matches (but a missing gradient is reported even where the truth is 0 everywhere), and
// where a branch is undecided, as nobody is accused then. At most kMostReplays replays and a few
// more (where one comes near it is repeated with bounds). `rerun` may be empty: then nothing that
// only another run shows is found.
std::vector<Finding> diagnose(const Evidence&, const Replay&, const Rerun& rerun = {});

}  // namespace distgrad
