// Hypotheses on what comes after backward: the gradient of an input that every rank holds a copy of
// is all-reduced over the ranks (a scenario's `sync`, DistributedDataParallel's work), or must come
// out of backward as if it had been (layout `invariant`). They stand in a Hypothesis beside the
// rules of collectives: RuleChoice::step is then the input's name and RuleChoice::rule begins with
// "sync:". They need no replay of their own, as they work on what the ranks' backward gave.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/assemble.h"
#include "model/findings.h"
#include "model/run_result.h"

namespace distgrad {

// "sync:forgotten:dp", "sync:group:dp:tp", "sync:without::2": kind, axis, and what it is about.
struct SyncMistake {
  enum class Kind {
    kForgotten,  // each rank keeps its own share
    kOtherOp,    // the mean for the sum, or the sum for the mean
    kTwice,      // summed twice
    kDivided,    // a mean whose division was made twice
    kGroup,      // over group `group` ("world": all ranks) in place of the axis
    kWithout,    // the share of rank `rank` is absent
    kAlone,      // rank `rank` keeps its own share, and the others go without it
    kReduced,    // the result is on the first rank alone: reduce in place of all_reduce
  };
  Kind kind{};
  std::string axis;   // empty: the world, or all axes along which an input is invariant
  std::string group;  // kGroup
  int rank = 0;       // kWithout, kAlone: of the world
};

// Nothing for a rule of a collective or a rewriting.
std::optional<SyncMistake> sync_mistake_named(std::string_view rule);

// Those that make sense for the input, as texts of a RuleChoice; none where nothing is to be
// reduced, or only over ranks by themselves.
std::vector<std::string> sync_mistakes_of(const Program&, const Input&);

// What the ranks hold of the input after backward gave these shares and `rules` (of this input, one
// an axis) went wrong; without rules that of its `sync`. Nothing where the pieces of other ranks do
// not fit together.
std::optional<GradientByRank> synchronised(const Program&, const Input&,
                                           const std::vector<SyncMistake>& rules,
                                           const GradientByRank& shares);

FindingName finding_of(SyncMistake::Kind);

// Two or three sentences: "The gradient of w ...", and the remedy. `inputs`: whose, as in a text.
std::string text_of(const Program&, const Input&, const SyncMistake&, const std::string& inputs);

}  // namespace distgrad
