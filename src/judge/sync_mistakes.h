// Lists what may go wrong after backward. The gradient of an input that every rank holds a copy of
// is all-reduced (a scenario's `sync`, DistributedDataParallel's work), or must come out of
// backward as if it had been (layout `invariant`). These mistakes need no replay, since they work
// on what the ranks' backward gave. In text they begin with "sync:".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/assemble.h"
#include "model/findings.h"
#include "model/run_result.h"

namespace distgrad {

// Describes a mistake, spelt "sync:forgotten:dp", "sync:group:dp:tp" or "sync:without::2" by its
// kind, axis, and group or rank.
struct SyncMistake {
  enum class Kind {
    kForgotten,  // each rank keeps its own share
    kOtherOp,    // the mean in place of the sum, or the sum in place of the mean
    kTwice,      // summed twice
    kDivided,    // a mean that was divided twice
    kGroup,      // over group `group` ("world": all ranks) in place of the axis
    kWithout,    // the share of rank `rank` is absent
    kAlone,      // rank `rank` keeps its own share, and the others' sum lacks it
    kReduced,    // only the first rank has the result: reduce in place of all_reduce
  };
  Kind kind{};
  std::string axis;   // empty: the world, or all axes along which an input is invariant
  std::string group;  // kGroup
  int rank = 0;       // kWithout, kAlone: of the world
};

// Reads a text that begins with "sync:", else returns nothing.
std::optional<SyncMistake> sync_mistake_named(std::string_view rule);

// Returns the mistakes that make sense for the input, as text. There are none if nothing is to be
// reduced, or only over single ranks.
std::vector<std::string> sync_mistakes_of(const Program&, const Input&);

// Returns what the ranks hold of the input if backward gave these shares and `rules` (of this
// input, one an axis) went wrong; without rules, what its `sync` makes of them. Returns nothing if
// the ranks' pieces do not fit together.
std::optional<GradientByRank> synchronised(const Program&, const Input&,
                                           const std::vector<SyncMistake>& rules,
                                           const GradientByRank& shares);

FindingName finding_of(SyncMistake::Kind);

// Writes two or three sentences: "The gradient of w ...", the remedy. `inputs` names the inputs.
std::string text_of(const Program&, const Input&, const SyncMistake&, const std::string& inputs);

}  // namespace distgrad
