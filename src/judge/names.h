// Names wrong backwards by predicates on what was measured and what is right, in three tables. Each
// is a pure function; the first that holds is the most specific. docs/diagnosis.md lists them.
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
  // Says what the backward did, in a sentence that follows "the backward of all_reduce "; empty:
  // the name does not fit.
  std::string (*happened)(const ComparedMaps&);
  std::string_view right_if;         // follows "Right if "; empty: never
  std::string_view right_objective;  // right_if holds under this objective
  std::string_view remedy;           // a sentence, imperative
  FindingName also = {};             // another finding that says the same
  // Returns the world ranks to blame. If null, those that differ are blamed.
  std::vector<int> (*ranks)(const ComparedMaps&) = nullptr;
};

// These come before the comparison with other calls, since they say more than "another group's
// backward".
std::span<const WrongBackward> special_names();  // special_names.cpp
std::span<const WrongBackward> general_names();  // general_names.cpp
// These name backwards that are not linear.
std::span<const WrongBackward> nonlinear_names();  // nonlinear_names.cpp

}  // namespace distgrad
