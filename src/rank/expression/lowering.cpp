#include "rank/expression/lowering.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <set>
#include <string>

#include "rank/expression/allow_list.h"
#include "rank/expression/operators.h"

namespace distgrad {
namespace {

using c10::IValue;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;
using torch::jit::Value;

// Lists ATen's operators, without "aten::", for which an allowed name or Python's syntax may stand.
const std::set<std::string>& runnable_operators() {
  static const std::set<std::string> operators = [] {
    // Syntax: signs, iteration, casts, attributes.
    std::set<std::string> names = {"__lshift__",  "__rshift__", "bitwise_and", "bitwise_or",
                                   "bitwise_xor", "numpy_T",    "mT",          "size",
                                   "dim",         "unbind",     "to",          "numel"};
    for (const AllowedGroup& group : allowed_groups())
      for (const AllowedFunction& function : group.functions) {
        if (function.places & (kFunction | kMethod)) names.insert(std::string(function.name));
        if (function.places & kLinalg) names.insert("linalg_" + std::string(function.name));
      }
    for (const FunctionalFunction& function : functional_functions())
      names.insert(std::string(function.operator_name));
    return names;
  }();
  return operators;
}

bool may_run(const torch::jit::Operator& op) {
  const std::string& name = op.schema().name();
  if (!is_pure(op)) return false;
  if (name == "prim::dtype") return true;
  return name.starts_with("aten::") && runnable_operators().contains(name.substr(6));
}

class Lowering {
 public:
  explicit Lowering(const EmittedGraph& graph) : graph_(graph) {}

  InstructionList run() {
    for (const Value* input : graph_.graph->inputs()) assign(input);
    need(graph_.result);
    block(graph_.graph->block(), list_.instructions);
    list_.result = registers_.at(graph_.result);
    list_.constants.resize(registers_.size());
    return std::move(list_);
  }

 private:
  // Matching overloads leaves unused nodes behind, so only nodes that the result needs run.
  void need(const Value* value) {
    const Node* node = value->node();
    if (!needed_.insert(node).second) return;
    for (const Value* input : node->inputs()) need(input);
    for (const torch::jit::Block* inner : node->blocks())
      for (const Value* output : inner->outputs()) need(output);
  }

  int assign(const Value* value) {
    const int index = static_cast<int>(registers_.size());
    registers_.emplace(value, index);
    return index;
  }

  void block(const torch::jit::Block* from, Instructions& to) {
    for (const Node* node : from->nodes())
      if (needed_.contains(node)) lower_node(node, to);
  }

  std::size_t place_of(const Node* node) const {
    const auto found = graph_.places.find(node);
    return found == graph_.places.end() ? node->sourceRange().start() : found->second;
  }

  void lower_node(const Node* node, Instructions& to) {
    if (node->kind() == torch::jit::prim::Constant) {
      const int index = assign(node->output());
      if (list_.constants.size() <= static_cast<std::size_t>(index))
        list_.constants.resize(index + 1);
      list_.constants[index] = torch::jit::toIValue(node->output()).value_or(IValue());
      const auto literal = graph_.literals.find(node);
      if (literal != graph_.literals.end()) list_.literals.emplace_back(index, literal->second);
      return;
    }
    Instruction instruction;
    instruction.place = place_of(node);
    for (const Value* input : node->inputs()) instruction.inputs.push_back(registers_.at(input));
    if (!node->blocks().empty()) {
      lower_blocks(node, instruction);
    } else {
      instruction.operation = operation_of(node);
      instruction.device_input = device_input_of(node);
    }
    instruction.outputs = static_cast<int>(node->outputs().size());
    instruction.first_output = static_cast<int>(registers_.size());
    for (const Value* output : node->outputs()) assign(output);
    to.push_back(std::move(instruction));
  }

  // Serves constructors: a function that takes a tensor puts its result on that tensor's device.
  int device_input_of(const Node* node) const {
    const auto matched = graph_.matched.find(node);
    if (matched == graph_.matched.end()) return -1;
    const auto& arguments = matched->second->schema().arguments();
    const auto holds_tensor = [](const c10::Argument& a) {
      return a.type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
             a.type()->isSubtypeOf(*c10::ListType::ofTensors());
    };
    if (std::any_of(arguments.begin(), arguments.end(), holds_tensor)) return -1;
    const auto device = std::find_if(arguments.begin(), arguments.end(),
                                     [](const c10::Argument& a) { return a.name() == "device"; });
    return device == arguments.end() ? -1 : static_cast<int>(device - arguments.begin());
  }

  void lower_blocks(const Node* node, Instruction& instruction) {
    const bool conditional = node->kind() == torch::jit::prim::If;
    instruction.kind =
        conditional ? Instruction::Kind::kConditional : Instruction::Kind::kComprehension;
    if (!conditional)
      instruction.element_type =
          node->output()->type()->expectRef<c10::ListType>().getElementType();
    for (std::size_t i = 0; i < 2; ++i) {
      const torch::jit::Block* inner = node->blocks()[i];
      if (inner->outputs().empty()) continue;  // a comprehension without condition
      if (!inner->inputs().empty()) instruction.blocks[i].parameter = assign(inner->inputs()[0]);
      block(inner, instruction.blocks[i].instructions);
      instruction.blocks[i].result = registers_.at(inner->outputs()[0]);
    }
  }

  Operation operation_of(const Node* node) const {
    const auto ours = graph_.operations.find(node);
    if (ours != graph_.operations.end()) return ours->second;
    const auto matched = graph_.matched.find(node);
    if (matched != graph_.matched.end() && may_run(*matched->second))
      return matched->second->getOperation(node);
    if (node->kind() == torch::jit::prim::ListConstruct) return list_construct(node);
    if (node->kind() == torch::jit::prim::TupleConstruct) return tuple_construct;
    if (node->kind() == torch::jit::prim::TupleUnpack) return tuple_unpack;
    const std::string name = node->kind().toUnqualString();
    // TorchScript inserts these conversions by itself; Python does not make them.
    if (name == "IntImplicit" || name == "FloatImplicit" || name == "ScalarImplicit")
      throw ExpressionError("a tensor stands where a number must; write int(x) or float(x)",
                            place_of(node));
    if (name == "NumToTensor")
      throw ExpressionError("a number stands where a tensor must; write torch.tensor(...)",
                            place_of(node));
    throw ExpressionError(name + " is not a pure tensor function and is not allowed in a scenario",
                          place_of(node));
  }

  static Operation list_construct(const Node* node) {
    const c10::TypePtr type = node->output()->type()->expectRef<c10::ListType>().getElementType();
    return [type](Stack& stack) {
      c10::impl::GenericList list(type);
      list.reserve(stack.size());
      for (IValue& value : stack) list.push_back(std::move(value));
      stack.clear();
      stack.emplace_back(std::move(list));
    };
  }

  static void tuple_construct(Stack& stack) {
    IValue tuple = c10::ivalue::Tuple::create(std::vector<IValue>(stack.begin(), stack.end()));
    stack.clear();
    stack.push_back(std::move(tuple));
  }

  static void tuple_unpack(Stack& stack) {
    const IValue tuple = stack[0];
    const auto& elements = tuple.toTupleRef().elements();
    stack.assign(elements.begin(), elements.end());
  }

  const EmittedGraph& graph_;
  InstructionList list_;
  std::unordered_set<const Node*> needed_;
  std::unordered_map<const Value*, int> registers_;
};

}  // namespace

InstructionList lower(const EmittedGraph& graph) { return Lowering(graph).run(); }

}  // namespace distgrad
