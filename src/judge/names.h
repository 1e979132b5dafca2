// The names of wrong backwards: predicates on what was measured and what is right, in three tables.
// Each is a pure function; of those that hold the first is the most specific. docs/diagnosis.md
// lists them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/compared_maps.h"
#include "model/findings.h"

namespace distgrad {

struct WrongBackward {
  FindingName finding;
  // What the backward did, a sentence that follows "the backward of all_reduce "; empty: it is not
  // this one.
  std::string (*happened)(const ComparedMaps&);
  std::string_view right_if;         // follows "Right if "; empty: never
  std::string_view right_objective;  // right_if holds under this objective
  std::string_view remedy;           // a sentence, imperative
  FindingName also = {};             // another finding that says the same
  std::vector<int> (*ranks)(const ComparedMaps&) =
      nullptr;  // to blame, of the world; else those that differ
};

// Before other calls are held against it: names more special than "another group's backward".
std::span<const WrongBackward> special_names();  // special_names.cpp
std::span<const WrongBackward> general_names();  // general_names.cpp
// Of a backward that is not linear.
std::span<const WrongBackward> nonlinear_names();  // nonlinear_names.cpp

}  // namespace distgrad
