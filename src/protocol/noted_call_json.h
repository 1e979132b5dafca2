// Reads and writes a collective as ranks put it on the board and in replies. Included by the codecs
// only.
#pragma once

#include "protocol/noted_call.h"
#include "protocol/payload.h"

namespace distgrad {

// Leave out what only a note has. Throws BadMessage.
NotedCall read_noted_call(const Json&);
Json write_noted_call(const NotedCall&);

// Includes what only a note has.
Json write_note(const NotedCall&);

}  // namespace distgrad
