// Which of the hypotheses reproduce what was observed.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "diagnose/replayer.h"

namespace distgrad {

// What was found, and what was learnt on the way.
struct Explanations {
  std::vector<Hypothesis> found;
  // Steps without which (cut off) some gradient that differs would be another: where it may part.
  // By step, in program order, the inputs that it bears on, as indices of the gradients.
  std::vector<std::pair<const Step*, std::vector<std::size_t>>> bearing;
};

// The hypotheses that reproduce what was observed: single ones, or, where none does, joint ones of
// which no smaller part does, or else two collectives that go by two rules (which only data of some
// size can show). What the subject is known to do comes first.
Explanations explanations(const Evidence&, const Replayer&);

}  // namespace distgrad
