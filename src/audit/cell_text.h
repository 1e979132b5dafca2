// What a cell of the audit's table says, on the screen and in JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

// "ok", "2/5", "no", ...: at most five columns wide.
std::string cell_text(const Cell& cell);

// "ok", "WRONG", "raises", "BROKEN", "refused", "disputed", "partly refused", "-".
std::string_view state_name(const Cell& cell);

// What the words in these cells mean, other than "ok", "-" and "2/5"; "" where there are none.
std::string legend(const std::vector<const Cell*>& cells);

}  // namespace distgrad
