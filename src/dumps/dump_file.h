// Reads the two formats of gradient dumps into the same value. A problem with a file is a UserError
// of one line that starts with its path; no file, however malformed, does more than that.
#pragma once

#include <string>

#include "dumps/dump.h"

namespace distgrad::dumps {

// Reads `.safetensors`: 8 bytes with the header's length, the header (JSON), the elements. It takes
// F64, F32, F16 and BF16. docs/compare.md describes the keys `distgrad.*` of its __metadata__.
RankDump read_safetensors(const std::string& path);

// Reads `.json`: {name: nested numbers or null}, or {"rank": r, "gradients": {...}} with the
// metadata's other keys. A tensor is float32 if every number is one, else float64.
RankDump read_json_dump(const std::string& path);

}  // namespace distgrad::dumps
