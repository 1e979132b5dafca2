// A collective as ranks write it on the board and in replies. Included by the codecs only.
#pragma once

#include "protocol/noted_call.h"
#include "protocol/payload.h"

namespace distgrad {

// Without what only a note has. Throws BadMessage.
NotedCall read_noted_call(const Json&);
Json write_noted_call(const NotedCall&);

// With it.
Json write_note(const NotedCall&);

}  // namespace distgrad
