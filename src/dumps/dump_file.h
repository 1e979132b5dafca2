// The two formats of gradient dumps, each read into the same value. What is wrong with a file is a
// UserError of one line that starts with its path; no file, however malformed, does more than that.
#pragma once

#include <string>

#include "dumps/dump.h"

namespace distgrad::dumps {

// `.safetensors`: 8 bytes with the header's length, the header (JSON), the elements. F64, F32, F16
// and BF16. The keys `distgrad.*` of its __metadata__ are docs/compare.md's.
RankDump read_safetensors(const std::string& path);

// `.json`: {name: nested numbers or null}, or {"rank": r, "gradients": {...}} with the same keys as
// the metadata besides. Where every number is a float32 the tensor counts as one, else as a
// float64.
RankDump read_json_dump(const std::string& path);

}  // namespace distgrad::dumps
