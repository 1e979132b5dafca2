// A Program as it stands in a message.
#pragma once

#include "model/program.h"
#include "protocol/payload.h"

namespace distgrad {

Json write_program(const Program&, PayloadWriter&);
Program read_program(const Json&, const PayloadReader&);  // throws BadMessage

}  // namespace distgrad
