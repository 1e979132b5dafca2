// Lists calls that somebody may have made in backward in place of the right one: over another
// group, in another order of its ranks, or with another root. The simulator gives the matrix of
// each, to compare a measured one with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/findings.h"
#include "model/program.h"

namespace distgrad {

struct OtherCall {
  FindingName finding;
  std::string happened;     // follows "the backward of all_reduce "
  std::string_view remedy;  // a sentence, imperative
  CollectiveCall call;
  std::vector<Group> groups;  // the groups that the program needs for it
};

// Returns the likelier calls first.
std::vector<OtherCall> other_calls(const Program&, const CollectiveCall&);

}  // namespace distgrad
