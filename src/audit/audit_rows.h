// Holds what an audit is asked for, and the lines that it makes of that: one for a collective, an
// op and a function.
#pragma once

#include <string>
#include <vector>

#include "audit/battery.h"
#include "audit/subject_functions.h"

namespace distgrad {

struct AuditOptions {
  std::string subject, objective, python, out, json, battery;
  std::vector<std::string> collectives, ops, without, aspect_names;
  std::vector<Aspect> aspects;  // those of aspect_names
  int world_size = 0;           // 0: as each case needs it
  bool strict = false;
};

struct AuditRow {
  CollectiveKind kind;
  ReduceOp op;
  std::string subject;   // what runs this collective, without KIND=
  std::string function;  // its name for readers
  std::vector<Trial> trials;
};

struct AuditPlan {
  std::vector<AuditRow> rows;
  std::vector<std::string> lacking;    // collectives without a function in the subject
  std::vector<std::string> not_asked;  // those tried on request only
  std::vector<std::string> unusable;   // functions that cannot be called, with the reason
};

// Imports a subject in Python to see what it has. Throws UserError.
AuditPlan plan_of(const AuditOptions& options, Interpreters& interpreters,
                  const WhileImporting& while_importing);

// Returns the names that --without takes: of aspects and of cases.
std::vector<std::string> parts_of_an_audit();

}  // namespace distgrad
