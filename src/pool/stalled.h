// Finds, among ranks that do not get on, which ones deviate from the others and whom they wait for,
// from what each has noted of its collective. All functions map values to values; they say nothing
// that the notes do not show.
#pragma once

#include <optional>
#include <span>

#include "pool/blame.h"

namespace distgrad {

// Finds ranks in the same collective of one group that differ in what must be equal: kind, op,
// root, dtype, or the size if that counts. It is a desync of the rank that differs from all others.
std::optional<RankError> difference_error(const Program&, std::span<const RankPlace>);

// Does the same for a case that all ranks have finished, from everything that each has entered, by
// rank. Sizes are not compared, since a difference would have failed or hung. Returns nothing if
// the ranks were in the same collectives.
std::optional<RankError> silent_difference(const Program&,
                                           std::span<const std::vector<NotedCall>> entered);

// Finds a collective that some ranks wait in and others have not entered. It is a hang of a rank
// that does something else, or a desync if all wait, each for another.
std::optional<RankError> absence_error(const Program&, std::span<const RankPlace>);

// Says what either finds for ranks that run no scenario, in the same words, or "".
std::string unmet_calls_text(std::span<const RankPlace>);

// Returns true if no rank can ever go on: each has finished the case, or waits in a collective that
// a missing rank will never enter.
bool is_deadlock(const Program&, std::span<const RankPlace>);

// Returns the ranks that others wait for and that wait for nobody.
std::vector<int> awaited_ranks(std::span<const RankPlace>);

}  // namespace distgrad
