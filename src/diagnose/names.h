// The names of wrong backwards: predicates on what was measured and what is right, in one table.
// Each is a pure function; of those that hold the first is the most specific. docs/diagnosis.md
// lists them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/blocks.h"
#include "model/findings.h"

namespace distgrad {

// What predicates look at.
struct Look {
  const Measurement& m;
  const Blocks& seen;   // what was measured
  const Blocks& right;  // what is right
};

struct WrongBackward {
  FindingName finding;
  // What the backward did, a sentence that follows "the backward of all_reduce "; empty: it is not
  // this one.
  std::string (*happened)(const Look&);
  std::string_view right_if;         // follows "Right if "; empty: never
  std::string_view right_objective;  // right_if holds under this objective
  std::string_view remedy;           // a sentence, imperative
  FindingName also = {};             // another finding that says the same
  std::vector<int> (*ranks)(const Look&) =
      nullptr;  // to blame, of the world; else those that differ
};

// Before other calls are held against it: names more special than "another group's backward".
std::span<const WrongBackward> special_names();
std::span<const WrongBackward> general_names();
// Of a backward that is not linear.
std::span<const WrongBackward> nonlinear_names();

}  // namespace distgrad
