// Calls that somebody may have made in backward in place of the right one: over another group, in
// another order of its ranks, with another root. Each has a matrix of its own, which the simulator
// gives, to hold a measured one against.
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
  std::vector<Group> groups;  // that the program must have for it
};

// The likelier first.
std::vector<OtherCall> other_calls(const Program&, const CollectiveCall&);

}  // namespace distgrad
