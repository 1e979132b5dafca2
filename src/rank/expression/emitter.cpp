#include "rank/expression/emitter.h"

#include <ATen/ops/is_nonzero.h>
#include <torch/csrc/jit/ir/constants.h>

#include <iterator>
#include <utility>

#include "base/did_you_mean.h"
#include "rank/expression/emission.h"
#include "rank/expression/numbers.h"

namespace distgrad {
namespace {

using Kind = Syntax::Kind;

// Lists modules that scripts import under a short name.
constexpr std::pair<std::string_view, std::string_view> kImported[] = {
    {"F", "write torch.nn.functional"},
    {"nn", "write torch.nn.functional; modules are not part of the language"},
    {"np", "write torch's functions"},
    {"numpy", "write torch's functions"},
    {"math", "write torch's functions and constants, as in torch.sqrt(x) and torch.pi"},
    {"dist", "a collective is a step of its own, as in { \"y\": { \"all_reduce\": \"x\" } }"},
};

struct TensorOperator {
  std::string_view sign;
  const char* straight;   // x OP y, x OP number
  const char* reflected;  // number OP x, as Python's Tensor.__rOP__
  bool swaps;             // reflected(x, number) rather than reflected(number, x)
};
const TensorOperator& tensor_operator_of(std::string_view sign) {
  static constexpr TensorOperator kOperators[] = {
      {"+", "add", "add", true},
      {"-", "sub", "rsub", true},
      {"*", "mul", "mul", true},
      {"/", "div", nullptr, false},  // x.reciprocal() * number
      {"//", "floor_divide", "floor_divide", false},
      {"%", "remainder", "remainder", false},
      {"**", "pow", "pow", false},
      {"@", "matmul", nullptr, false},  // (no number is a matrix)
      {"&", "bitwise_and", "bitwise_and", true},
      {"|", "bitwise_or", "bitwise_or", true},
      {"^", "bitwise_xor", "bitwise_xor", true},
      {"<<", "__lshift__", "bitwise_left_shift", false},
      {">>", "__rshift__", "bitwise_right_shift", false},
  };
  return *std::find_if(std::begin(kOperators), std::end(kOperators),
                       [&](auto& op) { return op.sign == sign; });
}

}  // namespace

EmittedGraph Emitter::run(const Syntax& tree,
                          const std::vector<std::pair<std::string, TypePtr>>& inputs) {
  for (const auto& [name, type] : inputs) {
    Value* value = graph().addInput();
    value->setType(type);
    names_[name] = value;
  }
  out_.result = emit(tree);
  if (dtypes_.contains(out_.result))
    throw ExpressionError("this is a data type, not a tensor", tree.place);
  graph().registerOutput(out_.result);
  return std::move(out_);
}

// ---- values

Value* Emitter::emit(const Syntax& node) {
  switch (node.kind) {
    case Kind::kName:
      return name(node);
    case Kind::kInt:
    case Kind::kFloat:
      return literal(node);
    case Kind::kString:
      return constant(node.text, node.place);
    case Kind::kTrue:
      return constant(true, node.place);
    case Kind::kFalse:
      return constant(false, node.place);
    case Kind::kNone:
      return none(node.place);
    case Kind::kEllipsis:
      throw ExpressionError("'...' stands only in subscripts", node.place);
    case Kind::kSlice:
      throw ExpressionError("a slice stands only in subscripts", node.place);
    case Kind::kList:
      return sequence(node, true);
    case Kind::kTuple:
      return sequence(node, false);
    case Kind::kComprehension:
      return comprehension(node);
    case Kind::kGenerator:
      throw ExpressionError("a generator is an argument only of sum, max or min; write [...]",
                            node.place);
    case Kind::kAttribute:
      return attribute(node);
    case Kind::kCall:
      return call(node);
    case Kind::kSubscript:
      return subscript(node);
    case Kind::kUnary:
      return unary(node);
    case Kind::kBinary:
      return binary(node);
    case Kind::kCompare:
      return compare(node);
    case Kind::kAnd:
    case Kind::kOr:
      return short_circuit(node, 0);
    case Kind::kConditional:
      return conditional(node);
  }
  throw ExpressionError("unknown syntax", node.place);
}

Value* Emitter::literal(const Syntax& node) {
  Value* value = node.kind == Kind::kInt ? constant(node.integer, node.place)
                                         : constant(node.number, node.place);
  out_.literals.emplace(value->node(), &node);
  return value;
}

Value* Emitter::name(const Syntax& node) {
  const auto found = names_.find(node.text);
  if (found != names_.end()) return found->second;
  if (node.text == "torch") throw ExpressionError("torch is a module, not a value", node.place);
  if (contains(python_functions(), node.text))
    throw ExpressionError(node.text + " is a function; call it", node.place);
  throw ExpressionError(unknown_name(node.text), node.place);
}

std::string Emitter::unknown_name(const std::string& text) const {
  for (const auto& [name, instead] : kImported)
    if (name == text) return "unknown name \"" + text + "\"; " + std::string(instead);
  std::string message = "unknown name \"" + text + "\"" + did_you_mean(text, all_names_);
  std::string names;
  for (const std::string& known : all_names_) names += (names.empty() ? "" : ", ") + known;
  if (names.empty()) return message + "; no names are defined here";
  return message + (message.ends_with('?') ? " " : "; ") + "names here: " + names;
}

Value* Emitter::sequence(const Syntax& node, bool as_list) {
  std::vector<Value*> values;
  for (const SyntaxPtr& child : node.children) {
    values.push_back(emit(*child));
    refuse_dtype(values.back(), child->place);
  }
  return as_list ? list_or_tuple(values, node.place) : tuple(values, node.place);
}

// ---- operators

Value* Emitter::unary(const Syntax& node) {
  Value* operand = emit(*node.children[0]);
  refuse_dtype(operand, node.place);
  if (node.text == "not") return negation(condition(operand, node.children[0]->place), node.place);
  if (is_tensor(operand->type())) {
    const char* name = node.text == "-" ? "neg" : node.text == "+" ? "positive" : "bitwise_not";
    return aten(name, {operand}, node.place);
  }
  const TypePtr type =
      is_number(operand->type()) ? number_unary_type(node.text, operand->type()) : nullptr;
  if (!type)
    throw ExpressionError(
        "unsupported operand for " + node.text + ": " + describe_type(operand->type()), node.place);
  return add_node("unary", {operand}, type, node.place,
                  operation([op = node.text](const Stack& in) { return number_unary(op, in[0]); }));
}

Value* Emitter::negation(Value* truth, std::size_t place) {
  return add_node("not", {truth}, c10::BoolType::get(), place,
                  operation([](const Stack& in) { return IValue(!in[0].toBool()); }));
}

Value* Emitter::binary(const Syntax& node) {
  Value* left = emit(*node.children[0]);
  Value* right = emit(*node.children[1]);
  refuse_dtype(left, node.place);
  refuse_dtype(right, node.place);
  const bool numbers[2] = {is_number(left->type()), is_number(right->type())};
  const bool tensors[2] = {is_tensor(left->type()), is_tensor(right->type())};
  if (numbers[0] && numbers[1]) return number_operator(node, left, right);
  if (tensors[0] && (tensors[1] || numbers[1])) return tensor_operator(node, left, right);
  if (numbers[0] && tensors[1]) return reflected_operator(node, left, right);
  if (Value* list = list_operator(node, left, right)) return list;
  unsupported_operands(node, left, right);
}

void Emitter::unsupported_operands(const Syntax& node, Value* left, Value* right) const {
  throw ExpressionError("unsupported operands for " + node.text + ": " +
                            describe_type(left->type()) + " and " + describe_type(right->type()),
                        node.place);
}

Value* Emitter::number_operator(const Syntax& node, Value* left, Value* right) {
  const TypePtr type =
      number_binary_type(node.text, left->type(), right->type(), torch::jit::toIValue(right));
  if (!type) unsupported_operands(node, left, right);
  return add_node(
      "binary", {left, right}, type, node.place,
      operation([op = node.text](const Stack& in) { return number_binary(op, in[0], in[1]); }));
}

Value* Emitter::tensor_operator(const Syntax& node, Value* left, Value* right) {
  return aten(tensor_operator_of(node.text).straight, {left, as_scalar(right, node.place)},
              node.place);
}

Value* Emitter::reflected_operator(const Syntax& node, Value* number, Value* tensor) {
  const TensorOperator& op = tensor_operator_of(node.text);
  number = as_scalar(number, node.place);
  if (node.text == "/")
    return aten("mul", {aten("reciprocal", {tensor}, node.place), number}, node.place);
  if (!op.reflected) unsupported_operands(node, number, tensor);
  if (node.text == "//") number = wrapped(number, node.place);
  return op.swaps ? aten(op.reflected, {tensor, number}, node.place)
                  : aten(op.reflected, {number, tensor}, node.place);
}

Value* Emitter::list_operator(const Syntax& node, Value* left, Value* right) {
  if (node.text == "*" && is_integer(left->type())) std::swap(left, right);
  if (!is_list(left->type())) return nullptr;
  Value* result = nullptr;
  if (node.text == "*" && is_integer(right->type())) {
    result = add_node("repeat", {left, right}, left->type(), node.place,
                      operation([](const Stack& in) { return list_repeated(in[0], in[1]); }));
  } else if (node.text == "+" && is_python_tuple(left) == is_python_tuple(right)) {
    if (is_tuple(right->type())) right = as_list(right, node.place);
    if (!(*left->type() == *right->type())) return nullptr;
    result = add_node("concatenate", {left, right}, left->type(), node.place,
                      operation([](const Stack& in) { return list_concatenated(in[0], in[1]); }));
  }
  if (result && is_python_tuple(left)) python_tuples_.insert(result);
  return result;
}

Value* Emitter::wrapped(Value* number, std::size_t place) {
  return add_node("wrapped", {number}, c10::TensorType::get(), place,
                  operation([](const Stack& in) { return IValue(wrapped_number(in[0])); }));
}

Value* Emitter::compare(const Syntax& node) {
  Value* left = emit(*node.children[0]);
  Value* right = emit(*node.children[1]);
  if (node.text == "in" || node.text == "not in") return membership(node, left, right);
  const bool equality = node.text == "==" || node.text == "!=";
  if (dtypes_.contains(left) != dtypes_.contains(right) || (dtypes_.contains(left) && !equality))
    throw ExpressionError("a data type compares only with another, by == or !=", node.place);
  if (is_number(left->type()) && is_number(right->type())) {
    return add_node("compare", {left, right}, c10::BoolType::get(), node.place,
                    operation([op = node.text](const Stack& in) {
                      return IValue(number_compare(op, in[0], in[1]));
                    }));
  }
  return tensor_comparison(node, left, right);
}

// Takes only integers: for floats and tensors Python also asks whether they are the same object.
Value* Emitter::membership(const Syntax& node, Value* left, Value* right) {
  refuse_dtype(left, node.place);
  Value* list = as_list(right, node.place);
  if (!is_integer(left->type()) || !is_list(list->type()) ||
      !is_integer(element_type(list->type())))
    throw ExpressionError("'" + node.text + "' asks for an integer in a list of integers",
                          node.place);
  const bool wanted = node.text == "in";
  return add_node("contains", {left, list}, c10::BoolType::get(), node.place,
                  operation([wanted](const Stack& in) {
                    const auto elements = in[1].toListRef();
                    const bool found =
                        std::any_of(elements.begin(), elements.end(), [&](const IValue& element) {
                          return number_compare("==", in[0], element);
                        });
                    return IValue(found == wanted);
                  }));
}

Value* Emitter::tensor_comparison(const Syntax& node, Value* left, Value* right) {
  struct Comparison {
    std::string_view sign;
    const char* straight;
    const char* reflected;
  };
  static constexpr Comparison kComparisons[] = {{"<", "lt", "gt"},  {">", "gt", "lt"},
                                                {"<=", "le", "ge"}, {">=", "ge", "le"},
                                                {"==", "eq", "eq"}, {"!=", "ne", "ne"}};
  const auto& comparison =
      *std::find_if(std::begin(kComparisons), std::end(kComparisons),
                    [&](auto& candidate) { return candidate.sign == node.text; });
  if (is_tensor(left->type()) && (is_tensor(right->type()) || is_number(right->type())))
    return aten(comparison.straight, {left, as_scalar(right, node.place)}, node.place);
  if (is_number(left->type()) && is_tensor(right->type()))
    return aten(comparison.reflected, {right, as_scalar(left, node.place)}, node.place);
  unsupported_operands(node, left, right);
}

// ---- conditions

// Emits Python's truth of a value.
Value* Emitter::condition(Value* value, std::size_t place) {
  refuse_dtype(value, place);
  const TypePtr& type = value->type();
  if (type->kind() == TypeKind::BoolType) return value;
  if (is_number(type))
    return add_node("truth", {value}, c10::BoolType::get(), place,
                    operation([](const Stack& in) { return to_python_bool(in[0]); }));
  if (is_tensor(type))
    return add_node("truth", {value}, c10::BoolType::get(), place, operation([](const Stack& in) {
                      return IValue(at::is_nonzero(in[0].toTensor()));
                    }));
  throw ExpressionError(describe_type(type) + " is no condition", place);
}

// Returns the value of an If node, whose blocks the two functions emit.
Value* Emitter::branch(Value* truth, std::size_t place, const std::function<Value*()>& then,
                       const std::function<Value*()>& otherwise) {
  Node* node = graph().insertNode(graph().create(torch::jit::prim::If, {truth}, 1));
  out_.places[node] = place;
  Value* values[2];
  for (int i = 0; i < 2; ++i) {
    torch::jit::Block* block = node->addBlock();
    const torch::jit::WithInsertPoint guard(block);
    values[i] = i == 0 ? then() : otherwise();
    block->registerOutput(values[i]);
  }
  node->output()->setType(common_type(values[0], values[1], place));
  if (is_list(node->output()->type())) {
    if (is_python_tuple(values[0]) != is_python_tuple(values[1]))
      throw ExpressionError("one branch is a tuple, the other a list", place);
    if (is_python_tuple(values[0])) python_tuples_.insert(node->output());
  }
  return node->output();
}

Value* Emitter::conditional(const Syntax& node) {
  Value* truth = condition(emit(*node.children[0]), node.children[0]->place);
  const auto value = [&](const Syntax& child) {
    Value* result = emit(child);
    refuse_dtype(result, child.place);
    return result;
  };
  return branch(
      truth, node.place, [&] { return value(*node.children[1]); },
      [&] { return value(*node.children[2]); });
}

// In Python `a and b` is one of its operands, in TorchScript a bool. They agree if both operands
// are bools.
Value* Emitter::short_circuit(const Syntax& node, std::size_t first) {
  const Syntax& operand = *node.children[first];
  Value* value = emit(operand);
  if (value->type()->kind() != TypeKind::BoolType)
    throw ExpressionError(
        "'" + node.text + "' joins comparisons, not " + describe_type(value->type()) +
            (is_tensor(value->type()) ? "; write torch.logical_" + node.text + "(x, y)" : ""),
        operand.place);
  if (first + 1 == node.children.size()) return value;
  const auto rest = [&] { return short_circuit(node, first + 1); };
  const auto decided = [&] { return constant(node.kind == Kind::kOr, node.place); };
  return node.kind == Kind::kAnd ? branch(value, node.place, rest, decided)
                                 : branch(value, node.place, decided, rest);
}

// ---- comprehensions

Value* Emitter::comprehension(const Syntax& node) {
  Value* list = iterable(*node.children[1]);
  Node* loop = graph().insertNode(
      graph().create(c10::Symbol::fromQualString("distgrad::comprehension"), {list}, 1));
  out_.places[loop] = node.place;
  const auto saved = names_;
  torch::jit::Block* condition_block = loop->addBlock();
  if (node.children.size() > 2) {
    const torch::jit::WithInsertPoint guard(condition_block);
    bind_targets(node, condition_block, element_type(list->type()));
    condition_block->registerOutput(condition(emit(*node.children[2]), node.children[2]->place));
  }
  torch::jit::Block* element_block = loop->addBlock();
  Value* element = nullptr;
  {
    const torch::jit::WithInsertPoint guard(element_block);
    bind_targets(node, element_block, element_type(list->type()));
    element = emit(*node.children[0]);
    refuse_dtype(element, node.children[0]->place);
    element_block->registerOutput(element);
  }
  names_ = saved;
  loop->output()->setType(c10::ListType::create(element->type()));
  return loop->output();
}

void Emitter::bind_targets(const Syntax& node, torch::jit::Block* block, const TypePtr& type) {
  Value* element = block->addInput();
  element->setType(type);
  if (node.targets.size() == 1) {
    bind(node.targets[0], element, node.place);
    return;
  }
  if (!is_tuple(type))
    throw ExpressionError("the loop has " + std::to_string(node.targets.size()) +
                              " names, but its elements are " + describe_type(type) + " each",
                          node.place);
  const std::vector<Value*> parts = tuple_elements(element);
  if (parts.size() != node.targets.size())
    throw ExpressionError("the loop has " + std::to_string(node.targets.size()) +
                              " names for tuples of " + std::to_string(parts.size()),
                          node.place);
  for (std::size_t i = 0; i < parts.size(); ++i) bind(node.targets[i], parts[i], node.place);
}

void Emitter::bind(const std::string& target, Value* value, std::size_t place) {
  if (target == "torch") throw ExpressionError("torch is not a name to bind", place);
  names_[target] = value;
}

// Emits what a comprehension runs over, as a list.
Value* Emitter::iterable(const Syntax& node) {
  if (node.kind == Kind::kCall && node.children[0]->kind == Kind::kName && node.keywords.empty()) {
    const std::string& function = node.children[0]->text;
    if (function == "range") return range_call(node);
    if (function == "zip" || function == "enumerate")
      return zip_call(node, function == "enumerate");
  }
  Value* value = emit(node);
  refuse_dtype(value, node.place);
  if (is_tensor(value->type())) return aten("unbind", {value}, node.place);  // Python's iteration
  if (is_list(value->type()) || is_tuple(value->type())) return as_list(value, node.place);
  throw ExpressionError(describe_type(value->type()) + " cannot be iterated over", node.place);
}

Value* Emitter::range_call(const Syntax& node) {
  std::vector<Value*> bounds = emit_all(node, 1);
  if (bounds.empty() || bounds.size() > 3)
    throw ExpressionError("range takes one to three integers", node.place);
  for (Value* bound : bounds) {
    refuse_dtype(bound, node.place);
    if (!is_integer(bound->type()))
      throw ExpressionError("range takes integers, not " + describe_type(bound->type()),
                            node.place);
  }
  return add_node("range", bounds, c10::ListType::ofInts(), node.place, operation(range_list));
}

Value* Emitter::zip_call(const Syntax& node, bool enumerate) {
  std::vector<Value*> lists;
  for (std::size_t i = 1; i < node.children.size(); ++i)
    lists.push_back(iterable(*node.children[i]));
  if (lists.empty() || (enumerate && lists.size() != 1))
    throw ExpressionError(enumerate ? "enumerate takes one list" : "zip takes lists", node.place);
  if (enumerate)
    lists.insert(
        lists.begin(),
        add_node("indices", {lists[0]}, c10::ListType::ofInts(), node.place,
                 operation([](const Stack& in) {
                   return range_list({static_cast<std::int64_t>(in[0].toListRef().size())});
                 })));
  std::vector<TypePtr> types;
  for (Value* list : lists) types.push_back(element_type(list->type()));
  const TypePtr type = c10::TupleType::create(types);
  return add_node("zip", lists, c10::ListType::create(type), node.place,
                  operation([type](const Stack& in) { return zipped(in, type); }));
}

// ---- subscripts

Value* Emitter::subscript(const Syntax& node) {
  if (dotted_name(*node.children[0]).starts_with("torch.")) refuse_torch_name(*node.children[0]);
  Value* object = emit(*node.children[0]);
  refuse_dtype(object, node.place);
  if (is_tensor(object->type())) return tensor_subscript(node, object);
  if (!is_list(object->type()) && !is_tuple(object->type()))
    throw ExpressionError(describe_type(object->type()) + " has no elements", node.place);
  if (node.children.size() != 2 || node.text == ",")
    throw ExpressionError("a list or tuple takes one subscript", node.place);
  return is_list(object->type()) ? list_subscript(node, object) : tuple_subscript(node, object);
}

Value* Emitter::tensor_subscript(const Syntax& node, Value* tensor) {
  std::vector<Subscript> subscripts;
  std::vector<Value*> inputs{tensor};
  for (std::size_t i = 1; i < node.children.size(); ++i) {
    const Syntax& item = *node.children[i];
    Subscript subscript;
    if (item.kind == Kind::kNone) {
      subscript.kind = Subscript::Kind::kNone;
    } else if (item.kind == Kind::kEllipsis) {
      subscript.kind = Subscript::Kind::kEllipsis;
    } else if (item.kind == Kind::kSlice) {
      subscript.kind = Subscript::Kind::kSlice;
      slice_parts(item, subscript, inputs);
    } else {
      inputs.push_back(tensor_index(item));
    }
    subscripts.push_back(subscript);
  }
  return add_node(
      "subscript", inputs, c10::TensorType::get(), node.place,
      operation([subscripts](const Stack& in) { return IValue(subscripted(subscripts, in)); }));
}

Value* Emitter::tensor_index(const Syntax& item) {
  Value* index = emit(item);
  refuse_dtype(index, item.place);
  const TypePtr& type = index->type();
  const bool flat_list = is_list(type) && is_integer(element_type(type)) && !is_python_tuple(index);
  if (is_tensor(type) || is_integer(type) || flat_list) return index;
  throw ExpressionError(
      "a tensor is indexed by integers, slices, tensors or lists of integers, not by " +
          describe_type(type),
      item.place);
}

void Emitter::slice_parts(const Syntax& slice, Subscript& subscript, std::vector<Value*>& inputs) {
  for (int i = 0; i < 3; ++i) {
    const Syntax* part = slice.children[i].get();
    if (!part || part->kind == Kind::kNone) continue;
    subscript.given[i] = true;
    inputs.push_back(integer_part(*part));
  }
}

Value* Emitter::integer_part(const Syntax& part) {
  Value* value = emit(part);
  refuse_dtype(value, part.place);
  if (!is_integer(value->type()))
    throw ExpressionError("slices are of integers, not " + describe_type(value->type()),
                          part.place);
  return value;
}

Value* Emitter::list_subscript(const Syntax& node, Value* list) {
  const Syntax& item = *node.children[1];
  if (item.kind != Kind::kSlice) {
    Value* index = emit(item);
    refuse_dtype(index, item.place);
    if (!is_integer(index->type()))
      throw ExpressionError(
          "a list is indexed by an integer, not by " + describe_type(index->type()), item.place);
    return add_node("element", {list, index}, element_type(list->type()), node.place,
                    operation([](const Stack& in) { return list_element(in[0], in[1]); }));
  }
  std::vector<Value*> inputs{list};
  for (const SyntaxPtr& part : item.children)
    inputs.push_back(!part || part->kind == Kind::kNone ? none(item.place) : integer_part(*part));
  Value* result =
      add_node("slice", inputs, list->type(), node.place,
               operation([](const Stack& in) { return list_slice(in[0], in[1], in[2], in[3]); }));
  if (is_python_tuple(list)) python_tuples_.insert(result);
  return result;
}

Value* Emitter::tuple_subscript(const Syntax& node, Value* object) {
  const Syntax& item = *node.children[1];
  const std::vector<Value*> elements = tuple_elements(object);
  const auto size = static_cast<std::int64_t>(elements.size());
  if (item.kind == Kind::kInt) {
    if (item.integer < -size || item.integer >= size)
      throw ExpressionError("the tuple has " + std::to_string(size) + " elements", item.place);
    return elements[item.integer < 0 ? item.integer + size : item.integer];
  }
  // With a computed index all elements must have one type.
  Value* list = as_list(object, node.place);
  const bool was_tuple = is_python_tuple(object);
  if (was_tuple) python_tuples_.insert(list);
  return list_subscript(node, list);
}
EmittedGraph emit_graph(const Syntax& tree, const std::string& text,
                        const std::vector<std::pair<std::string, TypePtr>>& inputs,
                        const std::vector<std::string>& all_names) {
  return Emitter(text, all_names).run(tree, inputs);
}

}  // namespace distgrad
