// Small pieces of Python. Internal to this folder.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/array.h"

namespace distgrad {

// "torch.tensor([1.0, 2.0])"; "torch.zeros(0, 3)" where there is no element.
std::string tensor_literal(const Array&);

// Lists of numbers: "[[0, 1], [2, 3]]".
std::string list_literal(const std::vector<std::vector<int>>&);
std::string list_literal(const std::vector<double>&);
std::string number_literal(double);
std::string string_literal(std::string_view);

// Every line that is not empty, by four spaces a level.
std::string indented_python(std::string_view lines, int levels);

// For the inside of a docstring.
std::string docstring_text(std::string text);

// The names that an expression takes from outside.
std::set<std::string> free_names_in(const std::string& expression);

// "AllReduce" of "all_reduce".
std::string camel_case(std::string_view name);

}  // namespace distgrad
