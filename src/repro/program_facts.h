// What several parts of a script ask about the program. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

// The input's name as the file has it, and the table shows it.
std::string title_of(const Input&);

// "x, w", each name with `before` in front of the first: what a function takes or returns.
std::string names_of(const std::vector<Input>&, const char* before = "");

// Of a step: the expression, the operand, or the arguments.
std::vector<std::string> expressions_of(const Step&);

// Of every step and the loss.
std::vector<std::string> expressions_of(const Program&);

// The group that "tp_rank" or "tp_size" speaks of; null where the name is no such. And the Python
// of its value, of `rank`.
const Group* group_of_name(const Program&, const std::string& name);
std::string group_value(const Group&, const std::string& name);

// Of the names in these expressions, those of groups.
std::vector<std::string> group_names_used(const Program&,
                                          const std::vector<std::string>& expressions);

// "for rank, (x, c) in enumerate(zip(x, c))": the loop in which an expression has the values of one
// rank.
std::string over_ranks(const std::string& expression, const std::vector<std::string>& by_rank);

// The input as `rank` holds it, from the whole: "shard(w, 0, rank, world_size)".
std::string held(const Program&, const Input&);

// By step, and last of the loss, whether it depends on an input that requires grad.
std::vector<bool> depend_on_gradient(const Program&);

// The collectives whose value the loss depends on, by name.
std::vector<std::string> reached_steps(const Program&);

// Whether some rank's backward may not come by some collective by itself: then it is led there.
bool may_part_ways(const Program&);

}  // namespace distgrad
