// What each backward rule did, when it is right and what to change: the words of the findings.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

struct RuleText {
  std::string_view rule;             // as in model/libraries.h
  std::string_view happened;         // follows "the backward of all_reduce "
  std::string_view right_if;         // follows "Right if "; empty: never
  std::string_view right_objective;  // right_if holds under this objective: named where it matches
  std::string_view remedy;           // a sentence, imperative
};

// Of a rule without a row: what its summary says.
RuleText text_of_rule(std::string_view rule);

}  // namespace distgrad
