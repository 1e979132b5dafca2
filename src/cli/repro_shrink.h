// Reduces scenarios for `distgrad repro --shrink`: the ranks say whether a simpler scenario still
// shows the finding.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "verify/verify.h"

namespace distgrad {

// Returns the scenario file of this case only, without what it varies and its other subjects. The
// subject is expected to match.
nlohmann::ordered_json document_of(const Case& which);

// Reduces the scenario while verdict, first finding and blamed collective (or the kind of an error)
// stay those of `result`. Shows progress on standard error if that is a terminal, and then what was
// reduced. Throws UserError if there is nothing to keep, since the case matches.
nlohmann::ordered_json shrunk_document(const Case& which, const CaseResult& result, Interpreters&);

}  // namespace distgrad
