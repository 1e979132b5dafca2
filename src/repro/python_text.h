// Writes small pieces of Python. Internal to this folder.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/array.h"

namespace distgrad {

// Returns "torch.tensor([1.0, 2.0])", or "torch.zeros(0, 3)" for an array without elements.
std::string tensor_literal(const Array&);

// Returns lists of numbers, such as "[[0, 1], [2, 3]]".
std::string list_literal(const std::vector<std::vector<int>>&);
std::string list_literal(const std::vector<double>&);
std::string number_literal(double);
std::string string_literal(std::string_view);

// Indents every line that is not empty by four spaces a level.
std::string indented_python(std::string_view lines, int levels);

// Escapes the text for the inside of a docstring.
std::string docstring_text(std::string text);

// Returns the names that an expression takes from outside; none where it does not parse.
std::set<std::string> free_names_in(const std::string& expression);

// Turns "all_reduce" into "AllReduce".
std::string camel_case(std::string_view name);

}  // namespace distgrad
