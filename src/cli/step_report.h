// Turns a report of check_gradients (src/python/distgrad/step/report.py, as JSON) into the report
// that the formats start from, with a case for each parameter.
#pragma once

#include <memory>
#include <string>

#include "model/report.h"

namespace distgrad {

struct StepReport {
  std::unique_ptr<Scenario> step;  // the cases point to it
  Report report;
};

// `text` is the JSON. Throws UserError, which names `path`, if it is no such report. With `strict`
// a disputed case is not as expected.
StepReport read_step_report(const std::string& text, const std::string& path, bool strict);

}  // namespace distgrad
