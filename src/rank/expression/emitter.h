// Turns a syntax tree into a typed graph of operators.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rank/expression/emitted_graph.h"
#include "scenario/syntax.h"

namespace distgrad {

// `inputs` has the names and types in the order of the graph's inputs; `all_names` serves messages.
// Throws ExpressionError.
EmittedGraph emit_graph(const Syntax& tree, const std::string& text,
                        const std::vector<std::pair<std::string, c10::TypePtr>>& inputs,
                        const std::vector<std::string>& all_names);

}  // namespace distgrad
