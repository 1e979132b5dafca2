// The audit's screen: a line a collective, and what is to be said of those that are not right.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

struct TableOptions {
  std::string subject;
  double elapsed_s = 0;
  std::size_t width = 100;
  std::vector<Aspect> requested;  // columns besides those that are always there
};

std::string audit_text(const std::vector<Judgement>& judgements, const TableOptions& options);

// {"format": 1, "subject": ..., "collectives": [...]}
std::string audit_json(const std::vector<Judgement>& judgements, const TableOptions& options);

}  // namespace distgrad
