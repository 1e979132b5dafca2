// Writes a scenario's program in words: what is held, done and meant, a line each. It is the same
// for all cases of a file.
#pragma once

#include <string>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

struct ProgramLine {
  std::string name;  // of the input, step, group; empty: the loss
  std::string text;  // "all_reduce(xx, op=sum)", "(rank + 2) * x"
  std::string how;   // of an input: its layout and other properties; else empty
  bool is_collective = false;
};

struct ProgramText {
  std::vector<ProgramLine> groups;  // mesh axes first
  std::vector<ProgramLine> inputs;
  std::vector<ProgramLine> steps;
  std::string loss;
  std::vector<ProgramLine> single_device;  // its steps and, without a name, its loss; may be empty
};

// Cuts long values.
ProgramText program_text(const Scenario&);

// Returns "all_reduce(xx, op=sum, group=tp)": the options that were given and those that always
// matter.
std::string call_text(const CollectiveCall&);

// Returns what a step does: its call as above, its code with the arguments, or its expression.
std::string step_text(const Step&);

}  // namespace distgrad
