// Words a cell of the audit's table, for the screen and JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

// Returns "ok", "2/5", "no", ...: at most five columns wide.
std::string cell_text(const Cell& cell);

// Returns "ok", "WRONG", "raises", "BROKEN", "refused", "disputed", "partly refused" or "-".
std::string_view state_name(const Cell& cell);

// Explains the words in these cells, other than "ok", "-" and "2/5"; returns "" if there are none.
std::string legend(const std::vector<const Cell*>& cells);

}  // namespace distgrad
