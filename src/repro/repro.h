// A case as a standalone Python script: what one pastes into an issue. It needs torch and nothing
// of distgrad.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/report.h"
#include "model/run_result.h"

namespace distgrad {

// What a script is written from: a case that was run.
struct ReproCase {
  const Case& which;
  const Program& program;
  const Simulation& simulation;  // with bounds
  const CaseResult& result;
  // By name of a collective step: the shapes of its operand by rank.
  std::map<std::string, std::vector<Shape>> operands;
  // By name of a collective step, where code that is not distgrad's has a part in the subject: how
  // it is called, or which of distgrad's own runs the step.
  struct Call {
    std::string builtin;  // "reference", "in_place", or empty
    std::string imports;  // lines
    std::string text;     // a function's body: of the operand `x` and, in a group, of `group`
    // What the whole forward run is in: "checkpoint", "checkpoint-reentrant", "autocast" or
    // nothing.
    std::string mode;
  };
  std::map<std::string, Call> calls;
  std::string versions;  // "distgrad 0.1.0, torch 2.15.0"
};

// Throws UserError for a case that no script can show: what is skipped, or names a rule of which
// there is no Python source.
std::string repro_script(const ReproCase&);

}  // namespace distgrad
