// The reduction behind `distgrad repro --shrink`: the ranks themselves say whether a simpler
// scenario still shows the finding.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "verify/verify.h"

namespace distgrad {

// The scenario file of one case alone: what it varies, and its other subjects, left out. The
// subject is expected to match.
nlohmann::ordered_json document_of(const Case& which);

// As simple as it gets while verdict, first finding and blamed collective (of an error: its kind)
// stay those of `result`. Tells progress on standard error where that is a terminal, and then what
// was reduced. Throws UserError where there is nothing to keep: the case matches.
nlohmann::ordered_json shrunk_document(const Case& which, const CaseResult& result, Interpreters&);

}  // namespace distgrad
