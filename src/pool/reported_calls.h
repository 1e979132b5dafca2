// Of ranks that no driver started, those of check_step: why they wait for each other in vain, from
// what each noted of its collectives.
#pragma once

#include <string>

namespace distgrad {

inline constexpr const char* kUnmetCallsWord = "--unmet-calls";

// `notes`: JSON, a list of {"rank": 0, "is_finished": false, "waits": true, "note": "..."}, one of
// each rank. A note is what ranks/noting.py writes; empty: it entered nothing; null: not known.
// Empty where the notes show nothing. Throws UserError.
std::string unmet_calls(const std::string& notes);

}  // namespace distgrad
