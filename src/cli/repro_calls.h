// How code that is not distgrad's is called in a reproduction: its own interpreter reads its
// signature and writes the call.
#pragma once

#include <map>
#include <string>

#include "cli/interpreters.h"
#include "repro/repro.h"

namespace distgrad {

// Throws UserError where a call depends on what only a run knows.
ReproCase::Foreign foreign_code(const Case&, const Program&, Interpreters&);

}  // namespace distgrad
