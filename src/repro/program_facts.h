// Answers what several parts of a script ask about the program. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

// Returns the input's name as the file and the report's table spell it.
std::string title_of(const Input&);

// Returns "x, w" with `before` in front of the first name: what a function takes or returns.
std::string names_of(const std::vector<Input>&, const char* before = "");

// Returns the step's expression, operand or arguments.
std::vector<std::string> expressions_of(const Step&);

// Returns those of every step and of the loss.
std::vector<std::string> expressions_of(const Program&);

// Returns the group of a name such as "tp_rank" or "tp_size"; null for any other name.
// group_value() returns the Python expression of the name's value, which uses `rank`.
const Group* group_of_name(const Program&, const std::string& name);
std::string group_value(const Group&, const std::string& name);

// Returns the names of group ranks and group sizes among the names in the expressions.
std::vector<std::string> group_names_used(const Program&,
                                          const std::vector<std::string>& expressions);

// Returns the loop in which an expression has the values of one rank, such as "for rank, (x, c) in
// enumerate(zip(x, c))". `by_rank` names the lists over the ranks.
std::string over_ranks(const std::string& expression, const std::vector<std::string>& by_rank);

// Returns the part of the input that `rank` holds: "shard(w, 0, rank, world_size)".
std::string held(const Program&, const Input&);

// Returns for each step, and last for the loss, whether it depends on an input that requires grad.
std::vector<bool> depend_on_gradient(const Program&);

// Returns the names of the collectives that the loss depends on.
std::vector<std::string> reached_steps(const Program&);

// Returns whether some rank's backward may miss a collective, so that Meeting must lead it there.
bool may_part_ways(const Program&);

}  // namespace distgrad
