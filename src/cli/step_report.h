// A report of check_gradients (src/python/distgrad/step/report.py, as JSON) in the form that the
// formats of reports are written from: a case a parameter.
#pragma once

#include <memory>
#include <string>

#include "model/report.h"

namespace distgrad {

struct StepReport {
  std::unique_ptr<Scenario> step;  // which the cases point to
  Report report;
};

// `text` is the JSON. Throws UserError, naming `path`, where it is no such report. `strict`: what
// is disputed is not as expected.
StepReport read_step_report(const std::string& text, const std::string& path, bool strict);

}  // namespace distgrad
