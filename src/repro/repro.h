// Writes a case as a standalone Python script that can be pasted into an issue. The script needs
// torch and nothing of distgrad.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/report.h"
#include "model/run_result.h"

namespace distgrad {

// Holds what a script is written from: a case that was run.
struct ReproCase {
  const Case& which;
  const Program& program;
  const Simulation& simulation;  // with bounds
  const CaseResult& result;
  // Holds the program's code that is not distgrad's, as its own interpreter says it is called.
  struct Foreign {
    struct Call {
      std::string
          builtin;       // what of distgrad's own runs the step: "reference", "in_place"; or empty
      std::string text;  // a function's body, which uses the operand `x` and, in a group, `group`
      std::string around;  // how the function is called: "async", "compile" or empty
    };
    struct Function {
      std::string name;
      std::string simulate;  // empty where the truth is measured
    };
    std::map<std::string, Call> calls;          // by name of the collective step
    std::map<std::string, Function> functions;  // by name of the step that calls code
    std::string imports;                        // whole lines
    std::vector<std::string> setups;            // functions that receive the process groups by name
    // Says what the forward run is in: "checkpoint", "checkpoint-reentrant", "autocast" or nothing.
    std::string mode;

    // Returns whether there is code that relies on torch's default dtype, which the script changes
    // for its own expressions.
    bool has_code() const;
  };
  Foreign foreign;
  std::string versions;  // "distgrad 0.1.0, torch 2.15.0"
};

// Returns the names that a script uses itself; no module may be imported under one of them.
const std::set<std::string>& script_names();

// Throws UserError for a case that no script can show: a skipped one, one with a rule that has no
// Python source, or one that calls code whose truth a script cannot measure.
std::string repro_script(const ReproCase&);

}  // namespace distgrad
