// Asks a subject's interpreter, which alone knows it, which functions it has for the collectives.
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
  std::string subject;  // "python:losses.py:GatherLayer", with the requested mode
  std::string name;     // "losses.py:GatherLayer"
  std::string problem;  // why it cannot be called, or ""
};

struct SubjectFunctions {
  bool is_built_in = false;  // distgrad's own functions run every collective
  std::vector<SubjectFunction> functions;
  std::vector<std::string> unnamed;  // functions that communicate, but whose names suggest no
                                     // collective
};

// Is called while the subject is imported, with the seconds so far.
using WhileImporting = std::function<void(double)>;

// Lists the functions of code in Python, for `kinds` only; if empty, for all that names suggest.
// Throws UserError, with the subject's own words, if it cannot be loaded.
SubjectFunctions functions_of(const SubjectPart& part, const std::vector<CollectiveKind>& kinds,
                              const Interpreter& python, const WhileImporting& while_importing);

// Returns true if the part of a subject is a single function, so that nobody need be asked:
// "python:losses.py:GatherLayer".
bool names_a_function(const SubjectPart& part);

}  // namespace distgrad
