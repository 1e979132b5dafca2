// Gives what an HTML report shows of one case when it is opened, as JSON for its script
// (html/case.js).
#pragma once

#include <nlohmann/json.hpp>

#include "model/report.h"
#include "report/html_texts.h"
#include "report/value_trace.h"

namespace distgrad {

struct Pictures {
  bool maps = true;                   // heat maps of what differs
  const ValueTrace* trace = nullptr;  // null if it was not worked out
};

// The result is bounded: long output, large tensors and many inputs are cut, and "left_out" says
// what was cut.
nlohmann::ordered_json html_case(const CaseResult&, const Pictures&, SharedTexts&);

}  // namespace distgrad
