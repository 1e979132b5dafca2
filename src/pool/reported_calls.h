// Explains why ranks that no driver started (those of check_step) wait for each other in vain, from
// what each noted of its collectives.
#pragma once

#include <string>

namespace distgrad {

inline constexpr const char* kUnmetCallsWord = "--unmet-calls";

// Takes JSON, a list of {"rank": 0, "is_finished": false, "waits": true, "note": "..."}, one for
// each rank. A note is what ranks/noting.py writes; "" means that the rank entered nothing, null
// that it is unknown. Returns "" if the notes show nothing. Throws UserError.
std::string unmet_calls(const std::string& notes);

}  // namespace distgrad
