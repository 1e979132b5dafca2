// A case as a standalone Python script: what one pastes into an issue. It needs torch and nothing
// of distgrad.
#pragma once

#include <map>
#include <set>
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
  // What of the program is code that is not distgrad's, as its own interpreter says it is called.
  struct Foreign {
    struct Call {
      std::string
          builtin;       // which of distgrad's own runs the step: "reference", "in_place"; or empty
      std::string text;  // a function's body: of the operand `x` and, in a group, of `group`
      std::string around;  // how it is called: "async", "compile" or nothing
    };
    struct Function {
      std::string name;
      std::string simulate;  // empty: the truth is measured
    };
    std::map<std::string, Call> calls;          // by collective step
    std::map<std::string, Function> functions;  // by step that calls code
    std::string imports;                        // lines
    std::vector<std::string> setups;  // functions that are told the process groups by name
    // What the whole forward run is in: "checkpoint", "checkpoint-reentrant", "autocast" or
    // nothing.
    std::string mode;

    // Code that relies on torch's default dtype, which a script's own expressions change.
    bool has_code() const;
  };
  Foreign foreign;
  std::string versions;  // "distgrad 0.1.0, torch 2.15.0"
};

// The names that a script has for itself: no module may be imported under one of them.
const std::set<std::string>& script_names();

// Throws UserError for a case that no script can show: what is skipped, names a rule of which there
// is no Python source, or calls code whose truth a script cannot measure.
std::string repro_script(const ReproCase&);

}  // namespace distgrad
