// What an HTML report shows of one case when it is opened, as JSON for its script (html/case.js).
#pragma once

#include <nlohmann/json.hpp>

#include "model/report.h"
#include "report/html_texts.h"
#include "report/value_trace.h"

namespace distgrad {

struct Pictures {
  bool maps = true;                   // heat maps of what differs
  const ValueTrace* trace = nullptr;  // null where it was not worked out
};

// Bounded: long output, large tensors and many inputs are cut, and what was cut is said in
// "left_out".
nlohmann::ordered_json html_case(const CaseResult&, const Pictures&, SharedTexts&);

}  // namespace distgrad
