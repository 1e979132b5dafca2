// Prints the audit's screen: a line for each collective and what it is right for, explanations of
// those that are not right, and what was not tried.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

struct TableOptions {
  std::string subject;
  double elapsed_s = 0;
  std::size_t width = 80;
  std::vector<Aspect> requested = {};       // tried besides those that always are
  std::vector<std::string> left_out = {};   // aspects and cases that the user left out
  std::vector<std::string> lacking = {};    // collectives without a function in the subject
  std::vector<std::string> not_asked = {};  // collectives tried on request only
  std::vector<std::string> unusable = {};   // functions that cannot be called, with the reason
  std::string ended_early = {};             // why not all collectives are there, or empty
};

std::string audit_text(const std::vector<Judgement>& judgements, const TableOptions& options);

// Returns {"format": 1, "subject": ..., "collectives": [...]}.
std::string audit_json(const std::vector<Judgement>& judgements, const TableOptions& options);

}  // namespace distgrad
