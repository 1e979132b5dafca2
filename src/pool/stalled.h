// Of ranks that do not get on: which of them do otherwise than the others, and for whom they wait,
// from what each has noted of the collective that it is in. Functions from values to values;
// nothing is said where the notes do not show it.
#pragma once

#include <optional>
#include <span>

#include "pool/blame.h"

namespace distgrad {

// Ranks that are in the same collective of one group, and differ in what has to be the same: kind,
// op, root, dtype, or the size where that counts. A desync of the rank that is alone with what it
// does.
std::optional<RankError> difference_error(const Program&, std::span<const RankPlace>);

// The same of a case that all ranks are through with, from all that each has entered, by rank. What
// would have failed or hung is not looked at again: sizes. None where the ranks were in the same
// collectives.
std::optional<RankError> silent_difference(const Program&,
                                           std::span<const std::vector<NotedCall>> entered);

// A collective that some ranks wait in and others have not entered: a hang of who does something
// else, a desync where all wait, each for another.
std::optional<RankError> absence_error(const Program&, std::span<const RankPlace>);

// What either shows of ranks that run no scenario, in the same words; empty where neither does.
std::string unmet_calls_text(std::span<const RankPlace>);

// Whether no rank can ever go on, however long one waits: each is through with the case or waits in
// a collective that cannot be completed, as who should be in it is not and never will.
bool is_deadlock(const Program&, std::span<const RankPlace>);

// The ranks that others wait for and that wait for nobody.
std::vector<int> awaited_ranks(std::span<const RankPlace>);

}  // namespace distgrad
