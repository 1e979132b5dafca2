// How code that is not distgrad's is called in a reproduction: its own interpreter reads its
// signature and writes the call.
#pragma once

#include <map>
#include <string>

#include "cli/interpreters.h"
#include "repro/repro.h"

namespace distgrad {

// By step, for the collectives of the case that such code runs. Throws UserError where a call
// depends on what only a run knows.
std::map<std::string, ReproCase::Call> calls_of_foreign_code(const Case&, const Program&,
                                                             Interpreters&);

}  // namespace distgrad
