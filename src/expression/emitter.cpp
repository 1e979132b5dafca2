#include "expression/emitter.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/is_nonzero.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/did_you_mean.h"
#include "expression/allow_list.h"
#include "expression/error_text.h"
#include "expression/numbers.h"
#include "expression/python_values.h"

namespace distgrad {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;
using torch::jit::NamedValue;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;
using torch::jit::Value;

std::string describe_type(const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::TensorType: return "a tensor";
    case TypeKind::IntType: return "an int";
    case TypeKind::FloatType: return "a float";
    case TypeKind::BoolType: return "a bool";
    case TypeKind::NumberType: return "a number";
    case TypeKind::StringType: return "a string";
    case TypeKind::NoneType: return "None";
    case TypeKind::TupleType: return "a tuple";
    case TypeKind::ListType: {
      const TypePtr element = type->expectRef<c10::ListType>().getElementType();
      std::string plural = describe_type(element);
      plural = plural.substr(plural.find(' ') + 1);
      return "a list of " + plural + "s";
    }
    default: return "a " + type->annotation_str();
  }
}

namespace {

using Kind = Syntax::Kind;

// Keyword arguments that no function may be given, wherever torch takes them.
constexpr std::string_view kRefusedKeywords[] = {"device", "generator", "layout",       "memory_format",
                                                 "names",  "out",       "pin_memory",   "requires_grad"};

// Functions that take any number of positional arguments in Python.
constexpr std::string_view kVariadic[] = {"atleast_1d", "atleast_2d",    "atleast_3d", "block_diag",
                                          "broadcast_tensors", "cartesian_prod", "einsum", "meshgrid",
                                          "ones", "zeros"};

template <typename Range>
bool contains(const Range& range, std::string_view name) {
  return std::find(std::begin(range), std::end(range), name) != std::end(range);
}

bool is_tensor(const TypePtr& type) { return type->kind() == TypeKind::TensorType; }
bool is_list(const TypePtr& type) { return type->kind() == TypeKind::ListType; }
bool is_tuple(const TypePtr& type) { return type->kind() == TypeKind::TupleType; }
bool is_integer(const TypePtr& type) {  // or may be one when it runs
  return type->kind() == TypeKind::IntType || type->kind() == TypeKind::BoolType ||
         type->kind() == TypeKind::NumberType;
}
TypePtr element_type(const TypePtr& list) { return list->expectRef<c10::ListType>().getElementType(); }

TypePtr unwrapped_optional(const TypePtr& type) {
  if (type->kind() != TypeKind::OptionalType) return type;
  return type->expectRef<c10::OptionalType>().getElementType();
}

// An operation from a function of the inputs.
template <typename Function>
Operation operation(Function function) {
  return [function](Stack& stack) {
    IValue result = function(static_cast<const Stack&>(stack));
    stack.clear();
    stack.push_back(std::move(result));
  };
}

struct Arguments {
  std::vector<Value*> positional;
  std::vector<std::pair<std::string, Value*>> keywords;
};

class Emitter {
 public:
  Emitter(const std::string& text, const std::vector<std::string>& all_names)
      : source_(std::make_shared<torch::jit::Source>(text)), all_names_(all_names) {}

  EmittedGraph run(const Syntax& tree, const std::vector<std::pair<std::string, TypePtr>>& inputs) {
    for (const auto& [name, type] : inputs) {
      Value* value = graph().addInput();
      value->setType(type);
      names_[name] = value;
    }
    out_.result = emit(tree);
    if (out_.dtypes.contains(out_.result)) throw ExpressionError("this is a data type, not a tensor", tree.place);
    graph().registerOutput(out_.result);
    return std::move(out_);
  }

 private:
  torch::jit::Graph& graph() { return *out_.graph; }

  torch::jit::SourceRange range(std::size_t place) const {
    return torch::jit::SourceRange(source_, place, place + 1);
  }

  Value* constant(const IValue& value, std::size_t place) { return graph().insertConstant(value, range(place)); }
  Value* none(std::size_t place) { return constant(IValue(), place); }

  Value* add_node(const char* name, const std::vector<Value*>& inputs, const TypePtr& type, std::size_t place,
                  Operation op) {
    static const std::string kSpace = "distgrad::";
    Node* node = graph().insertNode(graph().create(c10::Symbol::fromQualString(kSpace + name), inputs, 1));
    node->output()->setType(type);
    out_.places[node] = place;
    out_.operations.emplace(node, std::move(op));
    return node->output();
  }

  // ---- values

  Value* emit(const Syntax& node) {
    switch (node.kind) {
      case Kind::kName: return name(node);
      case Kind::kInt: return constant(node.integer, node.place);
      case Kind::kFloat: return constant(node.number, node.place);
      case Kind::kString: return constant(node.text, node.place);
      case Kind::kTrue: return constant(true, node.place);
      case Kind::kFalse: return constant(false, node.place);
      case Kind::kNone: return none(node.place);
      case Kind::kEllipsis: throw ExpressionError("'...' stands only in subscripts", node.place);
      case Kind::kSlice: throw ExpressionError("a slice stands only in subscripts", node.place);
      case Kind::kList: return sequence(node, true);
      case Kind::kTuple: return sequence(node, false);
      case Kind::kComprehension: return comprehension(node);
      case Kind::kGenerator:
        throw ExpressionError("a generator is an argument only of sum, max or min; write [...]", node.place);
      case Kind::kAttribute: return attribute(node);
      case Kind::kCall: return call(node);
      case Kind::kSubscript: return subscript(node);
      case Kind::kUnary: return unary(node);
      case Kind::kBinary: return binary(node);
      case Kind::kCompare: return compare(node);
      case Kind::kAnd:
      case Kind::kOr: return short_circuit(node, 0);
      case Kind::kConditional: return conditional(node);
    }
    throw ExpressionError("unknown syntax", node.place);
  }

  Value* name(const Syntax& node) {
    const auto found = names_.find(node.text);
    if (found != names_.end()) return found->second;
    if (node.text == "torch") throw ExpressionError("torch is a module, not a value", node.place);
    if (contains(python_functions(), node.text))
      throw ExpressionError(node.text + " is a function; call it", node.place);
    throw ExpressionError(unknown_name(node.text), node.place);
  }

  std::string unknown_name(const std::string& text) const {
    std::string message = "unknown name \"" + text + "\"" + did_you_mean(text, all_names_);
    std::string names;
    for (const std::string& known : all_names_) names += (names.empty() ? "" : ", ") + known;
    return message + (names.empty() ? "; no names are defined here" : "; names here: " + names);
  }

  Value* sequence(const Syntax& node, bool as_list) {
    std::vector<Value*> values;
    for (const SyntaxPtr& child : node.children) {
      values.push_back(emit(*child));
      refuse_dtype(values.back(), child->place);
    }
    return as_list ? list_or_tuple(values, node.place) : tuple(values, node.place);
  }

  Value* tuple(const std::vector<Value*>& values, std::size_t place) {
    Value* value = graph().insertNode(graph().createTuple(values))->output();
    out_.places[value->node()] = place;
    return value;
  }

  // TorchScript's lists have one type. A list of ints and floats keeps each number's own as a tuple, and so does an empty
  // list, which has no type.
  Value* list_or_tuple(const std::vector<Value*>& values, std::size_t place) {
    const bool uniform = !values.empty() && std::all_of(values.begin(), values.end(), [&](Value* value) {
      return *value->type() == *values[0]->type();
    });
    if (!uniform) {
      Value* value = tuple(values, place);
      written_as_list_.insert(value);
      return value;
    }
    Node* node = graph().insertNode(graph().createList(values[0]->type(), values));
    out_.places[node] = place;
    return node->output();
  }

  std::vector<Value*> tuple_elements(Value* value) {
    if (value->node()->kind() == torch::jit::prim::TupleConstruct) return value->node()->inputs().vec();
    Node* node = graph().insertNode(graph().createTupleUnpack(value));
    return node->outputs().vec();
  }

  // A tuple whose elements have one type as a list; lists as they are.
  Value* as_list(Value* value, std::size_t place) {
    if (!is_tuple(value->type())) return value;
    const std::vector<Value*> elements = tuple_elements(value);
    Value* list = list_or_tuple(elements, place);
    if (!is_list(list->type()))
      throw ExpressionError(elements.empty() ? "this is empty" : "the elements have different types", place);
    return list;
  }

  // Python's tuples and lists neither add up nor compare equal; torch's operators return lists where Python has tuples.
  bool is_python_tuple(Value* value) const {
    if (is_tuple(value->type())) return !written_as_list_.contains(value);
    return python_tuples_.contains(value);
  }

  void refuse_dtype(Value* value, std::size_t place) const {
    if (out_.dtypes.contains(value))
      throw ExpressionError("a data type stands only in dtype=..., x.to(...), == and !=", place);
  }

  // ---- operators

  Value* unary(const Syntax& node) {
    Value* operand = emit(*node.children[0]);
    refuse_dtype(operand, node.place);
    if (node.text == "not") return negation(condition(operand, node.children[0]->place), node.place);
    if (is_tensor(operand->type())) {
      const char* name = node.text == "-" ? "neg" : node.text == "+" ? "positive" : "bitwise_not";
      return aten(name, {operand}, node.place);
    }
    const TypePtr type = is_number(operand->type()) ? number_unary_type(node.text, operand->type()) : nullptr;
    if (!type)
      throw ExpressionError("unsupported operand for " + node.text + ": " + describe_type(operand->type()), node.place);
    return add_node("unary", {operand}, type, node.place,
                    operation([op = node.text](const Stack& in) { return number_unary(op, in[0]); }));
  }

  Value* negation(Value* truth, std::size_t place) {
    return add_node("not", {truth}, c10::BoolType::get(), place,
                    operation([](const Stack& in) { return IValue(!in[0].toBool()); }));
  }

  Value* binary(const Syntax& node) {
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

  [[noreturn]] void unsupported_operands(const Syntax& node, Value* left, Value* right) const {
    throw ExpressionError("unsupported operands for " + node.text + ": " + describe_type(left->type()) + " and " +
                              describe_type(right->type()),
                          node.place);
  }

  Value* number_operator(const Syntax& node, Value* left, Value* right) {
    const TypePtr type =
        number_binary_type(node.text, left->type(), right->type(), torch::jit::toIValue(right));
    if (!type) unsupported_operands(node, left, right);
    return add_node("binary", {left, right}, type, node.place, operation([op = node.text](const Stack& in) {
                      return number_binary(op, in[0], in[1]);
                    }));
  }

  struct TensorOperator {
    std::string_view sign;
    const char* straight;   // x OP y, x OP number
    const char* reflected;  // number OP x, as Python's Tensor.__rOP__
    bool swaps;             // reflected(x, number) rather than reflected(number, x)
  };
  static const TensorOperator& tensor_operator_of(std::string_view sign) {
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
    return *std::find_if(std::begin(kOperators), std::end(kOperators), [&](auto& op) { return op.sign == sign; });
  }

  Value* tensor_operator(const Syntax& node, Value* left, Value* right) {
    return aten(tensor_operator_of(node.text).straight, {left, as_scalar(right, node.place)}, node.place);
  }

  Value* reflected_operator(const Syntax& node, Value* number, Value* tensor) {
    const TensorOperator& op = tensor_operator_of(node.text);
    number = as_scalar(number, node.place);
    if (node.text == "/") return aten("mul", {aten("reciprocal", {tensor}, node.place), number}, node.place);
    if (!op.reflected) unsupported_operands(node, number, tensor);
    if (node.text == "//") number = wrapped(number, node.place);
    return op.swaps ? aten(op.reflected, {tensor, number}, node.place)
                    : aten(op.reflected, {number, tensor}, node.place);
  }

  Value* list_operator(const Syntax& node, Value* left, Value* right) {
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

  // A bool is no Scalar to TorchScript, though it is to Python and to the operators.
  Value* as_scalar(Value* value, std::size_t place) {
    if (value->type()->kind() != TypeKind::BoolType) return value;
    return add_node("scalar", {value}, c10::NumberType::get(), place,
                    operation([](const Stack& in) { return in[0]; }));
  }

  Value* wrapped(Value* number, std::size_t place) {
    return add_node("wrapped", {number}, c10::TensorType::get(), place,
                    operation([](const Stack& in) { return IValue(wrapped_number(in[0])); }));
  }

  Value* compare(const Syntax& node) {
    Value* left = emit(*node.children[0]);
    Value* right = emit(*node.children[1]);
    const bool equality = node.text == "==" || node.text == "!=";
    if (out_.dtypes.contains(left) != out_.dtypes.contains(right) || (out_.dtypes.contains(left) && !equality))
      throw ExpressionError("a data type compares only with another, by == or !=", node.place);
    if (is_number(left->type()) && is_number(right->type())) {
      Value* result = add_node("compare", {left, right}, c10::BoolType::get(), node.place,
                               operation([op = node.text](const Stack& in) {
                                 return IValue(number_compare(op, in[0], in[1]));
                               }));
      out_.takes_dtypes.insert(result->node());
      return result;
    }
    return tensor_comparison(node, left, right);
  }

  Value* tensor_comparison(const Syntax& node, Value* left, Value* right) {
    struct Comparison {
      std::string_view sign;
      const char* straight;
      const char* reflected;
    };
    static constexpr Comparison kComparisons[] = {{"<", "lt", "gt"},  {">", "gt", "lt"},  {"<=", "le", "ge"},
                                                  {">=", "ge", "le"}, {"==", "eq", "eq"}, {"!=", "ne", "ne"}};
    const auto& comparison = *std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                           [&](auto& candidate) { return candidate.sign == node.text; });
    if (is_tensor(left->type()) && (is_tensor(right->type()) || is_number(right->type())))
      return aten(comparison.straight, {left, as_scalar(right, node.place)}, node.place);
    if (is_number(left->type()) && is_tensor(right->type()))
      return aten(comparison.reflected, {right, as_scalar(left, node.place)}, node.place);
    unsupported_operands(node, left, right);
  }

  // ---- conditions

  // Python's truth of a value.
  Value* condition(Value* value, std::size_t place) {
    refuse_dtype(value, place);
    const TypePtr& type = value->type();
    if (type->kind() == TypeKind::BoolType) return value;
    if (is_number(type))
      return add_node("truth", {value}, c10::BoolType::get(), place,
                      operation([](const Stack& in) { return to_python_bool(in[0]); }));
    if (is_tensor(type))
      return add_node("truth", {value}, c10::BoolType::get(), place,
                      operation([](const Stack& in) { return IValue(at::is_nonzero(in[0].toTensor())); }));
    throw ExpressionError(describe_type(type) + " is no condition", place);
  }

  // The value of an If node, whose blocks are emitted by the two functions.
  template <typename Then, typename Otherwise>
  Value* branch(Value* truth, std::size_t place, Then then, Otherwise otherwise) {
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

  TypePtr common_type(Value* first, Value* second, std::size_t place) const {
    const TypePtr& a = first->type();
    const TypePtr& b = second->type();
    if (*a == *b) return a;
    // An int or a float, as it runs: a number. A bool besides would lose what it is.
    const auto is_arithmetic = [](const TypePtr& t) { return is_number(t) && t->kind() != TypeKind::BoolType; };
    if (is_arithmetic(a) && is_arithmetic(b)) return c10::NumberType::get();
    throw ExpressionError("the two branches are of different types, " + describe_type(a) + " and " + describe_type(b),
                          place);
  }

  Value* conditional(const Syntax& node) {
    Value* truth = condition(emit(*node.children[0]), node.children[0]->place);
    const auto value = [&](const Syntax& child) {
      Value* result = emit(child);
      refuse_dtype(result, child.place);
      return result;
    };
    return branch(
        truth, node.place, [&] { return value(*node.children[1]); }, [&] { return value(*node.children[2]); });
  }

  // In Python `a and b` is one of its operands, in TorchScript a bool; they agree where both operands are bools.
  Value* short_circuit(const Syntax& node, std::size_t first) {
    const Syntax& operand = *node.children[first];
    Value* value = emit(operand);
    if (value->type()->kind() != TypeKind::BoolType)
      throw ExpressionError("'" + node.text + "' joins comparisons, not " + describe_type(value->type()) +
                                (is_tensor(value->type()) ? "; write torch.logical_" + node.text + "(x, y)" : ""),
                            operand.place);
    if (first + 1 == node.children.size()) return value;
    const auto rest = [&] { return short_circuit(node, first + 1); };
    const auto decided = [&] { return constant(node.kind == Kind::kOr, node.place); };
    return node.kind == Kind::kAnd ? branch(value, node.place, rest, decided)
                                   : branch(value, node.place, decided, rest);
  }

  // ---- comprehensions

  Value* comprehension(const Syntax& node) {
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

  void bind_targets(const Syntax& node, torch::jit::Block* block, const TypePtr& type) {
    Value* element = block->addInput();
    element->setType(type);
    if (node.targets.size() == 1) {
      bind(node.targets[0], element, node.place);
      return;
    }
    if (!is_tuple(type))
      throw ExpressionError("the loop has " + std::to_string(node.targets.size()) + " names, but its elements are " +
                                describe_type(type) + " each",
                            node.place);
    const std::vector<Value*> parts = tuple_elements(element);
    if (parts.size() != node.targets.size())
      throw ExpressionError("the loop has " + std::to_string(node.targets.size()) + " names for tuples of " +
                                std::to_string(parts.size()),
                            node.place);
    for (std::size_t i = 0; i < parts.size(); ++i) bind(node.targets[i], parts[i], node.place);
  }

  void bind(const std::string& target, Value* value, std::size_t place) {
    if (target == "torch") throw ExpressionError("torch is not a name to bind", place);
    names_[target] = value;
  }

  // What a comprehension runs over, as a list.
  Value* iterable(const Syntax& node) {
    if (node.kind == Kind::kCall && node.children[0]->kind == Kind::kName && node.keywords.empty()) {
      const std::string& function = node.children[0]->text;
      if (function == "range") return range_call(node);
      if (function == "zip" || function == "enumerate") return zip_call(node, function == "enumerate");
    }
    Value* value = emit(node);
    refuse_dtype(value, node.place);
    if (is_tensor(value->type())) return aten("unbind", {value}, node.place);  // Python's iteration
    if (is_list(value->type()) || is_tuple(value->type())) return as_list(value, node.place);
    throw ExpressionError(describe_type(value->type()) + " cannot be iterated over", node.place);
  }

  Value* range_call(const Syntax& node) {
    std::vector<Value*> bounds = emit_all(node, 1);
    if (bounds.empty() || bounds.size() > 3) throw ExpressionError("range takes one to three integers", node.place);
    for (Value* bound : bounds) {
      refuse_dtype(bound, node.place);
      if (!is_integer(bound->type()))
        throw ExpressionError("range takes integers, not " + describe_type(bound->type()), node.place);
    }
    return add_node("range", bounds, c10::ListType::ofInts(), node.place, operation(range_list));
  }

  Value* zip_call(const Syntax& node, bool enumerate) {
    std::vector<Value*> lists;
    for (std::size_t i = 1; i < node.children.size(); ++i) lists.push_back(iterable(*node.children[i]));
    if (lists.empty() || (enumerate && lists.size() != 1))
      throw ExpressionError(enumerate ? "enumerate takes one list" : "zip takes lists", node.place);
    if (enumerate)
      lists.insert(lists.begin(),
                   add_node("indices", {lists[0]}, c10::ListType::ofInts(), node.place, operation([](const Stack& in) {
                              return range_list({static_cast<std::int64_t>(in[0].toListRef().size())});
                            })));
    std::vector<TypePtr> types;
    for (Value* list : lists) types.push_back(element_type(list->type()));
    const TypePtr type = c10::TupleType::create(types);
    return add_node("zip", lists, c10::ListType::create(type), node.place,
                    operation([type](const Stack& in) { return zipped(in, type); }));
  }

  // ---- subscripts

  Value* subscript(const Syntax& node) {
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

  Value* tensor_subscript(const Syntax& node, Value* tensor) {
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
    return add_node("subscript", inputs, c10::TensorType::get(), node.place,
                    operation([subscripts](const Stack& in) { return IValue(subscripted(subscripts, in)); }));
  }

  Value* tensor_index(const Syntax& item) {
    Value* index = emit(item);
    refuse_dtype(index, item.place);
    const TypePtr& type = index->type();
    const bool flat_list = is_list(type) && is_integer(element_type(type)) && !is_python_tuple(index);
    if (is_tensor(type) || is_integer(type) || flat_list) return index;
    throw ExpressionError("a tensor is indexed by integers, slices, tensors or lists of integers, not by " +
                              describe_type(type),
                          item.place);
  }

  void slice_parts(const Syntax& slice, Subscript& subscript, std::vector<Value*>& inputs) {
    for (int i = 0; i < 3; ++i) {
      const Syntax* part = slice.children[i].get();
      if (!part || part->kind == Kind::kNone) continue;
      subscript.given[i] = true;
      inputs.push_back(integer_part(*part));
    }
  }

  Value* integer_part(const Syntax& part) {
    Value* value = emit(part);
    refuse_dtype(value, part.place);
    if (!is_integer(value->type()))
      throw ExpressionError("slices are of integers, not " + describe_type(value->type()), part.place);
    return value;
  }

  Value* list_subscript(const Syntax& node, Value* list) {
    const Syntax& item = *node.children[1];
    if (item.kind != Kind::kSlice) {
      Value* index = emit(item);
      refuse_dtype(index, item.place);
      if (!is_integer(index->type()))
        throw ExpressionError("a list is indexed by an integer, not by " + describe_type(index->type()), item.place);
      return add_node("element", {list, index}, element_type(list->type()), node.place,
                      operation([](const Stack& in) { return list_element(in[0], in[1]); }));
    }
    std::vector<Value*> inputs{list};
    for (const SyntaxPtr& part : item.children)
      inputs.push_back(!part || part->kind == Kind::kNone ? none(item.place) : integer_part(*part));
    Value* result = add_node("slice", inputs, list->type(), node.place, operation([](const Stack& in) {
                               return list_slice(in[0], in[1], in[2], in[3]);
                             }));
    if (is_python_tuple(list)) python_tuples_.insert(result);
    return result;
  }

  Value* tuple_subscript(const Syntax& node, Value* object) {
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

  // ---- attributes and calls

  // The torch function or constant, or the attribute of a value.
  Value* attribute(const Syntax& node) {
    const std::string dotted = dotted_name(node);
    if (dotted.starts_with("torch.")) return torch_attribute(node, dotted.substr(6));
    Value* object = emit(*node.children[0]);
    refuse_dtype(object, node.place);
    if (is_tuple(object->type())) return field(node, object);
    if (!is_tensor(object->type()))
      throw ExpressionError(describe_type(object->type()) + " has no attribute " + node.text, node.place);
    for (const AllowedAttribute& allowed : allowed_attributes())
      if (allowed.name == node.text) {
        Value* value = call_overloads(pure_overloads(std::string(allowed.operator_name), false),
                                      "." + node.text, {object}, {}, node.place);
        if (node.text == "dtype") out_.dtypes.insert(value);
        return value;
      }
    if (is_allowed(node.text, kMethod)) throw ExpressionError("." + node.text + " is a method; call it", node.place);
    refuse_method(node);
  }

  // x.max(0).values
  Value* field(const Syntax& node, Value* tuple) {
    const auto fields = fields_.find(tuple);
    if (fields != fields_.end()) {
      const auto at = std::find(fields->second.begin(), fields->second.end(), node.text);
      if (at != fields->second.end()) return tuple_elements(tuple)[at - fields->second.begin()];
    }
    throw ExpressionError("this tuple has no field " + node.text, node.place);
  }

  Value* torch_attribute(const Syntax& node, const std::string& name) {
    for (const TorchConstant& known : torch_constants())
      if (known.name == name) return constant(known.value, node.place);
    for (const TorchDType& known : torch_dtypes())
      if (known.name == name) return dtype_constant(known, node.place);
    if (is_allowed(name, kFunction)) throw ExpressionError("torch." + name + " is a function; call it", node.place);
    refuse_torch_name(node);
  }

  Value* dtype_constant(const TorchDType& dtype, std::size_t place) {
    // A node of its own, so that it is not mistaken for an integer.
    for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i)
      if (dtype.scalar_type == c10::toString(static_cast<at::ScalarType>(i))) {
        Value* value = add_node("dtype", {}, c10::IntType::get(), place,
                                operation([i](const Stack&) { return IValue(std::int64_t{i}); }));
        out_.dtypes.insert(value);
        return value;
      }
    throw ExpressionError("this torch has no " + std::string(dtype.name), place);
  }

  // node: the attribute chain torch.a.b
  [[noreturn]] void refuse_torch_name(const Syntax& node) {
    const std::string dotted = dotted_name(node);
    const std::string path = dotted.substr(0, dotted.rfind('.'));
    const std::string first = dotted.substr(6, dotted.find('.', 6) - 6);
    std::vector<std::string> known;
    if (path == "torch") known = allowed_names(kFunction);
    if (path == "torch.linalg") known = allowed_names(kLinalg);
    if (path == "torch.nn.functional")
      for (const FunctionalFunction& function : functional_functions()) known.emplace_back(function.name);
    if (path == "torch") {
      for (const TorchDType& dtype : torch_dtypes()) known.emplace_back(dtype.name);
      for (const TorchConstant& value : torch_constants()) known.emplace_back(value.name);
    }
    std::string hint = reason_for_refusal(node.text);
    if (hint.empty() && path == "torch" && (is_allowed(node.text, kMethod) || node.text.starts_with("linalg_")))
      hint = node.text.starts_with("linalg_") ? "; write torch.linalg." + node.text.substr(7)
                                              : "; it is a method, write x." + node.text + "(...)";
    const bool is_torchs = is_known_impure(first) || is_known_impure(node.text) ||
                           (path == "torch" && exists_in_torch("aten::" + node.text));
    if (hint.empty() && !is_torchs) hint = did_you_mean(node.text, known);
    throw ExpressionError(dotted + " is not a pure tensor function and is not allowed in a scenario" + hint, node.place);
  }

  [[noreturn]] void refuse_method(const Syntax& node) {
    std::string hint = reason_for_refusal(node.text);
    if (hint.empty() && is_allowed(node.text, kFunction)) hint = "; write torch." + node.text + "(...)";
    std::vector<std::string> known = allowed_names(kMethod);
    for (const AllowedAttribute& attribute : allowed_attributes()) known.emplace_back(attribute.name);
    if (hint.empty() && !is_known_impure(node.text)) hint = did_you_mean(node.text, known);
    throw ExpressionError("." + node.text + " is not a pure tensor function and is not allowed in a scenario" + hint,
                          node.place);
  }

  Value* call(const Syntax& node) {
    const Syntax& callee = *node.children[0];
    if (callee.kind == Kind::kName && !names_.contains(callee.text)) return python_call(node, callee.text);
    if (callee.kind == Kind::kAttribute) {
      const std::string dotted = dotted_name(callee);
      if (dotted.starts_with("torch.")) return torch_call(node, dotted.substr(6));
      return method_call(node, callee);
    }
    throw ExpressionError(callee.kind == Kind::kName ? callee.text + " is not a function" : "this is not a function",
                          callee.place);
  }

  std::vector<Value*> emit_all(const Syntax& node, std::size_t first) {
    std::vector<Value*> values;
    for (std::size_t i = first; i < node.children.size(); ++i) values.push_back(emit(*node.children[i]));
    return values;
  }

  Arguments arguments(const Syntax& node) {
    Arguments result;
    result.positional = emit_all(node, 1);
    for (const auto& [name, value] : node.keywords) {
      if (contains(kRefusedKeywords, name))
        throw ExpressionError("the argument " + name + " is not allowed in a scenario", value->place);
      result.keywords.emplace_back(name, emit(*value));
    }
    return result;
  }

  Value* method_call(const Syntax& node, const Syntax& callee) {
    Value* object = emit(*callee.children[0]);
    refuse_dtype(object, callee.place);
    if (!is_tensor(object->type())) {
      const std::string what = describe_type(object->type());
      if (is_tuple(object->type()) && fields_.contains(object)) (void)field(callee, object);
      throw ExpressionError(what + " has no method " + callee.text, callee.place);
    }
    if (!is_allowed(callee.text, kMethod)) refuse_method(callee);
    Arguments given = arguments(node);
    const std::string display = "." + callee.text;
    if (Value* converted = cast(callee, object, given)) return converted;
    complete_norm(callee.text, given, 0, callee.place);
    given.positional.insert(given.positional.begin(), object);
    return call_overloads(pure_overloads("aten::" + operator_of(callee.text), true), display, given.positional,
                          given.keywords, callee.place, /*method=*/true);
  }

  // Python's norm has p="fro" by default, which is 2 for vectors; ATen has no default beside dim.
  void complete_norm(const std::string& name, Arguments& given, std::size_t first, std::size_t place) {
    const auto has = [&](std::string_view keyword) {
      return std::any_of(given.keywords.begin(), given.keywords.end(), [&](auto& k) { return k.first == keyword; });
    };
    if (name == "norm" && given.positional.size() == first && has("dim") && !has("p"))
      given.keywords.emplace_back("p", constant(2, place));
  }

  // Python's names that ATen has under another.
  static std::string operator_of(const std::string& name) {
    if (name == "ndimension") return "dim";
    if (name == "nelement") return "numel";
    return name;
  }

  // x.float() and so on.
  Value* cast(const Syntax& callee, Value* object, const Arguments& given) {
    static constexpr std::string_view kCasts[] = {"bfloat16", "bool", "double", "float", "half", "int", "long", "short"};
    if (!contains(kCasts, callee.text)) return nullptr;
    if (!given.positional.empty() || !given.keywords.empty())
      throw ExpressionError("." + callee.text + "() takes no arguments here", callee.place);
    for (const TorchDType& dtype : torch_dtypes())
      if (dtype.name == callee.text)
        return aten("to", {object, dtype_constant(dtype, callee.place)}, callee.place);
    return nullptr;
  }

  Value* torch_call(const Syntax& node, const std::string& name) {
    const Syntax& callee = *node.children[0];
    if (name.starts_with("nn.functional.")) return functional_call(node, name.substr(14));
    const bool linalg = name.starts_with("linalg.");
    const std::string plain = linalg ? name.substr(7) : name;
    if (plain.find('.') != std::string::npos || !is_allowed(plain, linalg ? kLinalg : kFunction))
      refuse_torch_name(callee);
    Arguments given = arguments(node);
    if (name == "tensor") return tensor_call(node, given);
    complete_norm(name, given, 1, callee.place);
    const Overloads& overloads = pure_overloads("aten::" + (linalg ? "linalg_" + plain : plain), false);
    if (!contains(kVariadic, name)) check_count(overloads, given, "torch." + name, callee.place);
    return call_overloads(overloads, "torch." + name, given.positional, given.keywords, callee.place);
  }

  // TorchScript takes permute(x, 0, 1) for permute(x, (0, 1)); Python does so for methods only.
  void check_count(const Overloads& overloads, const Arguments& given, const std::string& display,
                   std::size_t place) const {
    std::size_t most = 0;
    for (const auto& op : overloads) {
      const auto& arguments = op->schema().arguments();
      most = std::max<std::size_t>(most, std::count_if(arguments.begin(), arguments.end(),
                                                       [](const auto& argument) { return !argument.kwarg_only(); }));
    }
    if (!overloads.empty() && given.positional.size() > most)
      throw ExpressionError(display + " takes at most " + std::to_string(most) + " positional arguments", place);
  }

  Value* tensor_call(const Syntax& node, const Arguments& given) {
    const std::size_t place = node.children[0]->place;
    if (given.positional.size() != 1) throw ExpressionError("torch.tensor takes one value", place);
    std::vector<Value*> inputs{given.positional[0]};
    refuse_dtype(inputs[0], place);
    for (const auto& [name, value] : given.keywords) {
      if (name != "dtype") throw ExpressionError("torch.tensor has no argument " + name + " here", place);
      if (!out_.dtypes.contains(value)) throw ExpressionError("dtype must be a data type", place);
      inputs.push_back(value);
    }
    if (!holds_only_numbers(inputs[0]->type()))
      throw ExpressionError("torch.tensor takes numbers and lists of numbers; join tensors with torch.stack", place);
    Value* result = add_node("tensor", inputs, c10::TensorType::get(), place, operation([](const Stack& in) {
                               std::optional<at::ScalarType> dtype;
                               if (in.size() > 1) dtype = static_cast<at::ScalarType>(in[1].toInt());
                               return IValue(tensor_from(in[0], dtype));
                             }));
    out_.takes_dtypes.insert(result->node());
    return result;
  }

  static bool holds_only_numbers(const TypePtr& type) {
    if (!is_list(type) && !is_tuple(type)) return is_number(type);
    const auto inner = type->containedTypes();
    return std::all_of(inner.begin(), inner.end(), holds_only_numbers);
  }

  // ---- torch.nn.functional

  Value* functional_call(const Syntax& node, const std::string& name) {
    const Syntax& callee = *node.children[0];
    const auto all = functional_functions();
    const auto function = std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.name == name; });
    if (function == all.end()) refuse_torch_name(callee);
    Arguments given = arguments(node);
    const std::string display = "torch.nn.functional." + name;
    const std::string qualified = "aten::" + std::string(function->operator_name);
    if (function->arguments.empty()) {
      check_count(pure_overloads(qualified, false), given, display, callee.place);
      return call_overloads(pure_overloads(qualified, false), display, given.positional, given.keywords, callee.place);
    }
    const c10::FunctionSchema& schema = functional_schema(*function);
    std::vector<Value*> values = match(schema, display, given, callee.place);
    const bool batch_mean = convert_reduction(schema, values, name == "kl_div", callee.place);
    Value* result = call_operator(reordered(values, function->order), qualified, display, callee.place);
    if (!batch_mean) return result;
    // As torch.nn.functional.kl_div: the sum over input.size(0).
    return aten("div", {result, aten("size", {values[0], constant(0, callee.place)}, callee.place)}, callee.place);
  }

  static const c10::FunctionSchema& functional_schema(const FunctionalFunction& function) {
    static std::unordered_map<std::string_view, c10::FunctionSchema> cache;
    const auto found = cache.find(function.name);
    if (found != cache.end()) return found->second;
    const std::string text =
        "functional::" + std::string(function.name) + "(" + std::string(function.arguments) + ") -> Tensor";
    return cache.emplace(function.name, torch::jit::parseSchema(text)).first->second;
  }

  static std::vector<Value*> reordered(const std::vector<Value*>& values, std::string_view order) {
    if (order.empty()) return values;
    std::vector<Value*> result;
    for (char digit : order) result.push_back(values[digit - '0']);
    return result;
  }

  // Python's reduction='mean' is an enumeration in ATen. True for kl_div's "batchmean", now a sum.
  bool convert_reduction(const c10::FunctionSchema& schema, std::vector<Value*>& values, bool with_batch_mean,
                         std::size_t place) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (schema.arguments()[i].name() != "reduction") continue;
      const auto text = torch::jit::toIValue(values[i]);
      const std::string reduction = text && text->isString() ? text->toStringRef() : "";
      const bool batch_mean = with_batch_mean && reduction == "batchmean";
      if (reduction != "none" && reduction != "mean" && reduction != "sum" && !batch_mean)
        throw ExpressionError("reduction must be 'none', 'mean' or 'sum'", place);
      values[i] = constant(std::int64_t{reduction == "none" ? 0 : reduction == "mean" ? 1 : 2}, place);
      return batch_mean;
    }
    return false;
  }

  // ---- Python's functions

  Value* python_call(const Syntax& node, const std::string& function) {
    const std::size_t place = node.place;
    if (function == "range" || function == "zip" || function == "enumerate")
      throw ExpressionError(function + " stands only after 'in' of a comprehension", place);
    if (!contains(python_functions(), function)) refuse_python_function(function, place);
    if (!node.keywords.empty()) throw ExpressionError(function + " takes no keyword arguments here", place);
    const bool folds = function == "sum" || function == "max" || function == "min";
    std::vector<Value*> values;
    for (std::size_t i = 1; i < node.children.size(); ++i) {
      const Syntax& child = *node.children[i];
      values.push_back(folds && child.kind == Kind::kGenerator ? comprehension(child) : emit(child));
      refuse_dtype(values.back(), child.place);
    }
    if (function == "max" || function == "min") return extreme(function, values, place);
    if (values.size() != 1) throw ExpressionError(function + " takes one argument", place);
    if (function == "len") return length(values[0], place);
    if (function == "sum") return sum(values[0], place);
    if (function == "abs") return absolute(values[0], place);
    return conversion(function, values[0], place);
  }

  [[noreturn]] void refuse_python_function(const std::string& function, std::size_t place) const {
    static constexpr std::string_view kPythons[] = {
        "__import__", "all",    "any",  "callable", "compile", "delattr", "dict",   "dir",    "eval",  "exec",
        "exit",       "filter", "getattr", "globals", "hasattr", "help",  "id",     "input",  "isinstance",
        "iter",       "list",   "locals", "map",   "next",    "object",   "open",   "print",  "quit",  "repr",
        "reversed",   "round",  "set",  "setattr", "sorted",  "str",      "super",  "tuple",  "type",  "vars"};
    if (contains(kPythons, function))
      throw ExpressionError(function + " is not a pure tensor function and is not allowed in a scenario", place);
    if (is_allowed(function, kFunction))
      throw ExpressionError("unknown function " + function + "; write torch." + function, place);
    std::vector<std::string> known(python_functions().begin(), python_functions().end());
    throw ExpressionError("unknown function " + function + did_you_mean(function, known), place);
  }

  Value* length(Value* value, std::size_t place) {
    if (is_tuple(value->type()))
      return constant(static_cast<std::int64_t>(value->type()->containedTypes().size()), place);
    if (is_list(value->type()))
      return add_node("len", {value}, c10::IntType::get(), place, operation([](const Stack& in) {
                        return IValue(static_cast<std::int64_t>(in[0].toListRef().size()));
                      }));
    if (!is_tensor(value->type())) throw ExpressionError(describe_type(value->type()) + " has no length", place);
    return add_node("len", {value}, c10::IntType::get(), place, operation([](const Stack& in) {
                      if (in[0].toTensor().dim() == 0) throw NumberError("len() of a 0-d tensor");
                      return IValue(in[0].toTensor().size(0));
                    }));
  }

  Value* sum(Value* value, std::size_t place) {
    if (is_tensor(value->type())) value = aten("unbind", {value}, place);
    if (is_list(value->type()) || is_tuple(value->type())) value = as_list(value, place);
    if (!is_list(value->type())) throw ExpressionError("sum takes a list; for a tensor write x.sum()", place);
    const TypePtr element = element_type(value->type());
    const bool tensors = is_tensor(element);
    if (!tensors && element->kind() != TypeKind::IntType && element->kind() != TypeKind::BoolType)
      // Python 3.12 began to sum floats with compensation.
      throw ExpressionError("sum takes tensors or ints; Python's versions differ in how they add floats", place);
    return add_node("sum", {value}, tensors ? TypePtr(c10::TensorType::get()) : TypePtr(c10::IntType::get()), place,
                    operation([tensors](const Stack& in) {
                      if (tensors && in[0].toListRef().empty()) throw NumberError("the sum of no tensors is no tensor");
                      return sum_of(in[0]);
                    }));
  }

  Value* absolute(Value* value, std::size_t place) {
    if (is_tensor(value->type())) return aten("abs", {value}, place);
    if (!is_number(value->type())) throw ExpressionError("abs of " + describe_type(value->type()), place);
    return add_node("abs", {value}, number_unary_type("abs", value->type()), place,
                    operation([](const Stack& in) { return number_unary("abs", in[0]); }));
  }

  Value* extreme(const std::string& function, std::vector<Value*> values, std::size_t place) {
    const bool largest = function == "max";
    if (values.size() == 1 && is_list(values[0]->type()) && is_number(element_type(values[0]->type())))
      return add_node(function.c_str(), values, element_type(values[0]->type()), place,
                      operation([largest](const Stack& in) { return extreme_of(in[0].toListRef().vec(), largest); }));
    if (values.size() == 1 && is_tuple(values[0]->type())) values = tuple_elements(values[0]);
    if (values.size() < 2 ||
        !std::all_of(values.begin(), values.end(), [](Value* value) { return is_number(value->type()); }))
      throw ExpressionError(function + " takes numbers; for tensors write torch." + function + "imum(x, y), x." +
                                function + "()",
                            place);
    TypePtr type = values[0]->type();
    for (Value* value : values)
      if (!(*value->type() == *type)) type = c10::NumberType::get();
    return add_node(function.c_str(), values, type, place,
                    operation([largest](const Stack& in) { return extreme_of(in, largest); }));
  }

  Value* conversion(const std::string& function, Value* value, std::size_t place) {
    if (function == "float" && value->type()->kind() == TypeKind::StringType) return float_of_text(value, place);
    const bool tensor = is_tensor(value->type());
    if (!tensor && !is_number(value->type()))
      throw ExpressionError(function + " of " + describe_type(value->type()), place);
    if (function == "bool") return condition(value, place);
    const TypePtr type = function == "int" ? TypePtr(c10::IntType::get()) : TypePtr(c10::FloatType::get());
    const auto convert = function == "int" ? to_python_int : to_python_float;
    return add_node(function.c_str(), {value}, type, place, operation([tensor, convert](const Stack& in) {
                      return convert(tensor ? item_of(in[0].toTensor()) : in[0]);
                    }));
  }

  Value* float_of_text(Value* value, std::size_t place) {
    const auto text = torch::jit::toIValue(value);
    for (auto [name, number] : {std::pair{"inf", std::numeric_limits<double>::infinity()},
                                {"-inf", -std::numeric_limits<double>::infinity()},
                                {"nan", std::numeric_limits<double>::quiet_NaN()}})
      if (text && text->toStringRef() == name) return constant(number, place);
    throw ExpressionError("float takes the strings 'inf', '-inf' and 'nan'", place);
  }

  // ---- matching arguments with schemas

  Value* aten(const char* name, const std::vector<Value*>& inputs, std::size_t place) {
    return call_overloads(pure_overloads(std::string("aten::") + name, false), name, inputs, {}, place);
  }

  // Calls the operator, whose arguments are known to be in its order.
  Value* call_operator(const std::vector<Value*>& values, const std::string& qualified, const std::string& display,
                       std::size_t place) {
    // Keyword-only arguments of ATen's signature are positional in ours.
    Arguments given;
    const Overloads& overloads = pure_overloads(qualified, false);
    const auto& schema_arguments = overloads.at(0)->schema().arguments();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i < schema_arguments.size() && schema_arguments[i].kwarg_only())
        given.keywords.emplace_back(schema_arguments[i].name(), values[i]);
      else
        given.positional.push_back(values[i]);
    }
    return call_overloads(overloads, display, given.positional, given.keywords, place);
  }

  static std::vector<NamedValue> named(const std::vector<std::pair<std::string, Value*>>& keywords) {
    std::vector<NamedValue> result;
    for (const auto& [name, value] : keywords) result.emplace_back(name, value);
    return result;
  }

  std::vector<Value*> match(const c10::FunctionSchema& schema, const std::string& display, const Arguments& given,
                            std::size_t place) {
    Arguments converted = given;
    convert_numbers(schema, converted, std::nullopt, place);
    const std::vector<NamedValue> positional(converted.positional.begin(), converted.positional.end());
    try {
      return torch::jit::matchSchema(schema, range(place), graph(), positional, named(converted.keywords)).inputs;
    } catch (const std::exception& error) {
      throw ExpressionError(display + ": " + mismatch_text(error), place);
    }
  }

  // One of the overloads, chosen by TorchScript's rules. For a method the first value is `self`.
  Value* call_overloads(const Overloads& overloads, const std::string& display, const std::vector<Value*>& values,
                        const std::vector<std::pair<std::string, Value*>>& keywords, std::size_t place,
                        bool method = false) {
    if (overloads.empty()) throw ExpressionError("this torch has no " + display, place);
    std::optional<NamedValue> self;
    Arguments given{values, keywords};
    if (method) {
      self = NamedValue("self", values[0]);
      given.positional.erase(given.positional.begin());
    }
    std::vector<const c10::FunctionSchema*> schemas;
    for (const auto& op : overloads) schemas.push_back(&op->schema());
    const std::vector<NamedValue> positional(given.positional.begin(), given.positional.end());
    try {
      auto [index, matched] =
          torch::jit::matchSchemas(schemas, range(place), graph(), positional, named(given.keywords), self);
      return insert_operator(overloads[index], matched, place);
    } catch (const ExpressionError&) {
      throw;
    } catch (const std::exception&) {
      return call_converted(overloads, display, given, self, place);
    }
  }

  // Once more with Python's conversions that TorchScript does not make: int to float, bool to number.
  Value* call_converted(const Overloads& overloads, const std::string& display, const Arguments& given,
                        const std::optional<NamedValue>& self, std::size_t place) {
    std::string reason;
    for (const auto& op : overloads) {
      Arguments converted = given;
      convert_numbers(op->schema(), converted, self, place);
      const std::vector<NamedValue> positional(converted.positional.begin(), converted.positional.end());
      try {
        auto matched = torch::jit::matchSchema(op->schema(), range(place), graph(), positional,
                                               named(converted.keywords), self);
        return insert_operator(op, matched, place);
      } catch (const ExpressionError&) {
        throw;
      } catch (const std::exception& error) {
        const std::string text = mismatch_text(error);
        // What one argument is tells more than how many there are.
        if (reason.empty() || (text.starts_with("Expected a value") && !reason.starts_with("Expected a value")))
          reason = text;
      }
    }
    throw ExpressionError(display + ": " + (reason.empty() ? "the arguments do not fit" : reason), place);
  }

  void convert_numbers(const c10::FunctionSchema& schema, Arguments& given, const std::optional<NamedValue>& self,
                       std::size_t place) {
    std::size_t next = 0;
    for (const c10::Argument& argument : schema.arguments()) {
      if (self && argument.name() == "self") continue;
      Value** value = nullptr;
      if (!argument.kwarg_only() && next < given.positional.size()) {
        value = &given.positional[next++];
      } else {
        const auto keyword = std::find_if(given.keywords.begin(), given.keywords.end(),
                                          [&](const auto& k) { return k.first == argument.name(); });
        if (keyword == given.keywords.end()) continue;
        value = &keyword->second;
      }
      if (!out_.dtypes.contains(*value)) *value = converted(*value, unwrapped_optional(argument.type()), place);
    }
  }

  Value* converted(Value* value, const TypePtr& wanted, std::size_t place) {
    const TypeKind have = value->type()->kind();
    if (wanted->kind() == TypeKind::FloatType && (have == TypeKind::IntType || have == TypeKind::NumberType))
      return add_node("float", {value}, c10::FloatType::get(), place,
                      operation([](const Stack& in) { return to_python_float(in[0]); }));
    if (wanted->kind() == TypeKind::NumberType && have == TypeKind::BoolType) return as_scalar(value, place);
    if (wanted->kind() == TypeKind::IntType && have == TypeKind::NumberType)
      return add_node("integer", {value}, c10::IntType::get(), place, operation([](const Stack& in) {
                        if (!in[0].isInt()) throw NumberError("a float stands where an integer must");
                        return in[0];
                      }));
    return value;
  }

  Value* insert_operator(const std::shared_ptr<torch::jit::Operator>& op, const torch::jit::MatchedSchema& matched,
                         std::size_t place) {
    check_inputs(op->schema(), matched.inputs, place);
    Node* node = graph().insertNode(
        graph().create(c10::Symbol::fromQualString(op->schema().name()), matched.inputs, 0));
    for (const TypePtr& type : matched.return_types) node->addOutput()->setType(type);
    out_.matched.emplace(node, op);
    out_.places[node] = place;
    if (node->outputs().size() != 1) {
      Value* result = tuple(node->outputs().vec(), place);
      std::vector<std::string> names;
      for (const c10::Argument& field : op->schema().returns()) names.push_back(field.name());
      fields_[result] = names;
      return result;
    }
    Value* result = node->output();
    if (is_list(result->type())) python_tuples_.insert(result);
    return result;
  }

  // Data types are ints to TorchScript; here an int is none and none is an int.
  void check_inputs(const c10::FunctionSchema& schema, const std::vector<Value*>& inputs, std::size_t place) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      const bool is_dtype = out_.dtypes.contains(inputs[i]);
      if (argument.name() == "dtype") {
        if (!is_dtype && inputs[i]->type()->kind() == TypeKind::IntType &&
            torch::jit::toIValue(inputs[i]) != argument.default_value())
          throw ExpressionError("dtype must be a data type such as torch.float32", place);
      } else if (is_dtype) {
        refuse_dtype(inputs[i], place);
      }
    }
  }

  EmittedGraph out_;
  std::shared_ptr<torch::jit::Source> source_;
  std::vector<std::string> all_names_;
  std::map<std::string, Value*> names_;
  std::unordered_map<const Value*, std::vector<std::string>> fields_;  // of named tuples
  std::unordered_set<const Value*> python_tuples_;                     // lists to torch, tuples to Python
  std::unordered_set<const Value*> written_as_list_;                   // tuples to us, lists to Python
};

}  // namespace

EmittedGraph emit_graph(const Syntax& tree, const std::string& text,
                        const std::vector<std::pair<std::string, TypePtr>>& inputs,
                        const std::vector<std::string>& all_names) {
  return Emitter(text, all_names).run(tree, inputs);
}

}  // namespace distgrad
