// From the syntax tree to a typed graph of operators. Overloads and argument conversions are TorchScript's
// (schema matching); what an operator sign, a subscript, a comprehension or a Python function means is Python's, and is
// written here, because TorchScript's reading differs from Python's in places.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "expression/operators.h"
#include "expression/syntax.h"

namespace distgrad {

// A graph in the making: what the nodes do beside their kind and inputs.
struct EmittedGraph {
  std::shared_ptr<torch::jit::Graph> graph = std::make_shared<torch::jit::Graph>();
  torch::jit::Value* result = nullptr;
  // Our own nodes do this ...
  std::unordered_map<const torch::jit::Node*, torch::jit::Operation> operations;
  // ... and these call one of torch's operators.
  std::unordered_map<const torch::jit::Node*, std::shared_ptr<torch::jit::Operator>> matched;
  std::unordered_map<const torch::jit::Node*, std::size_t> places;
  // Values that are data types (ints to TorchScript), and our nodes that may take them.
  std::unordered_set<const torch::jit::Value*> dtypes;
  std::unordered_set<const torch::jit::Node*> takes_dtypes;
};

// Names in the order of the graph's inputs, with their types. `all_names` are for messages. Throws ExpressionError.
EmittedGraph emit_graph(const Syntax& tree, const std::string& text,
                        const std::vector<std::pair<std::string, c10::TypePtr>>& inputs,
                        const std::vector<std::string>& all_names);

// "a list of tensors", for messages.
std::string describe_type(const c10::TypePtr&);

}  // namespace distgrad
