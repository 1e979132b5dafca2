// Holds a typed graph of operators, and what its nodes do beside their kind and inputs. The emitter
// makes it, and lowering turns it into instructions.
#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace distgrad {

struct Syntax;

struct EmittedGraph {
  std::shared_ptr<torch::jit::Graph> graph = std::make_shared<torch::jit::Graph>();
  torch::jit::Value* result = nullptr;
  // Says what our own nodes do.
  std::unordered_map<const torch::jit::Node*, torch::jit::Operation> operations;
  // Holds the nodes that call one of torch's operators.
  std::unordered_map<const torch::jit::Node*, std::shared_ptr<torch::jit::Operator>> matched;
  // Holds byte offsets in the text.
  std::unordered_map<const torch::jit::Node*, std::size_t> places;
  // Has the constants for numbers of the text, with the number as written. Nothing else in the
  // graph depends on a number's value, except where expression.cpp's Shape says so.
  std::unordered_map<const torch::jit::Node*, const Syntax*> literals;
};

}  // namespace distgrad
