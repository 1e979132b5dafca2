// Which functions a subject in Python has for the collectives: only its interpreter knows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/collective_kind.h"
#include "model/subject_text.h"
#include "verify/interpreters.h"

namespace distgrad {

struct SubjectFunction {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string subject;  // "python:losses.py:GatherLayer", with the mode that was asked for
  std::string name;     // "losses.py:GatherLayer"
  std::string problem;  // why it cannot be called; "": it can
};

struct SubjectFunctions {
  bool is_built_in = false;  // it runs every collective, by distgrad's own functions
  std::vector<SubjectFunction> functions;
  std::vector<std::string> unnamed;  // Functions that communicate and whose name says no collective
};

// Called while the subject is imported, with the seconds so far.
using WhileImporting = std::function<void(double)>;

// Of code in Python. `kinds`: only these; empty: all that names tell. Throws UserError where it
// cannot be loaded, with its own words.
SubjectFunctions functions_of(const SubjectPart& part, const std::vector<CollectiveKind>& kinds,
                              const Interpreter& python, const WhileImporting& while_importing);

// Whether the part of a subject is a single function, so that nobody need be asked:
// "python:losses.py:GatherLayer".
bool names_a_function(const SubjectPart& part);

}  // namespace distgrad
