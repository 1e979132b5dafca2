#include "rank/expression/graph_builder.h"

#include <torch/csrc/jit/ir/constants.h>

#include "base/did_you_mean.h"
#include "rank/expression/error_text.h"
#include "rank/expression/numbers.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

// These functions take any number of positional arguments in Python.
constexpr std::string_view kVariadic[] = {
    "atleast_1d",     "atleast_2d", "atleast_3d", "block_diag", "broadcast_tensors",
    "cartesian_prod", "einsum",     "meshgrid",   "ones",       "zeros"};

constexpr std::string_view kVariadicMethods[] = {
    "expand", "flip", "new_ones", "new_zeros", "permute", "repeat", "reshape", "tile", "view"};

TypePtr unwrapped_optional(const TypePtr& type) {
  if (type->kind() != TypeKind::OptionalType) return type;
  return type->expectRef<c10::OptionalType>().getElementType();
}

}  // namespace

std::string describe_type(const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::TensorType:
      return "a tensor";
    case TypeKind::IntType:
      return "an int";
    case TypeKind::FloatType:
      return "a float";
    case TypeKind::BoolType:
      return "a bool";
    case TypeKind::NumberType:
      return "a number";
    case TypeKind::StringType:
      return "a string";
    case TypeKind::NoneType:
      return "None";
    case TypeKind::TupleType:
      return "a tuple";
    case TypeKind::ListType: {
      const TypePtr element = type->expectRef<c10::ListType>().getElementType();
      std::string plural = describe_type(element);
      plural = plural.substr(plural.find(' ') + 1);
      return "a list of " + plural + "s";
    }
    default:
      return "a " + type->annotation_str();
  }
}

GraphBuilder::GraphBuilder(const std::string& text)
    : source_(std::make_shared<torch::jit::Source>(text)) {}

torch::jit::SourceRange GraphBuilder::range(std::size_t place) const {
  return torch::jit::SourceRange(source_, place, place + 1);
}

Value* GraphBuilder::constant(const IValue& value, std::size_t place) {
  return graph().insertConstant(value, range(place));
}

Value* GraphBuilder::add_node(const char* name, const std::vector<Value*>& inputs,
                              const TypePtr& type, std::size_t place, Operation op) {
  static const std::string kSpace = "distgrad::";
  Node* node =
      graph().insertNode(graph().create(c10::Symbol::fromQualString(kSpace + name), inputs, 1));
  node->output()->setType(type);
  out_.places[node] = place;
  out_.operations.emplace(node, std::move(op));
  return node->output();
}

Value* GraphBuilder::tuple(const std::vector<Value*>& values, std::size_t place) {
  Value* value = graph().insertNode(graph().createTuple(values))->output();
  out_.places[value->node()] = place;
  return value;
}

// TorchScript's lists have one type. A list of ints and floats becomes a tuple, in which each
// number keeps its type, and so does an empty list, which has no type.
Value* GraphBuilder::list_or_tuple(const std::vector<Value*>& values, std::size_t place) {
  const bool uniform =
      !values.empty() && std::all_of(values.begin(), values.end(), [&](Value* value) {
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

std::vector<Value*> GraphBuilder::tuple_elements(Value* value) {
  if (value->node()->kind() == torch::jit::prim::TupleConstruct)
    return value->node()->inputs().vec();
  Node* node = graph().insertNode(graph().createTupleUnpack(value));
  return node->outputs().vec();
}

// Returns a tuple whose elements have one type as a list, and lists unchanged.
Value* GraphBuilder::as_list(Value* value, std::size_t place) {
  if (!is_tuple(value->type())) return value;
  const std::vector<Value*> elements = tuple_elements(value);
  Value* list = list_or_tuple(elements, place);
  if (!is_list(list->type()))
    throw ExpressionError(elements.empty() ? "this is empty" : "the elements have different types",
                          place);
  return list;
}

// In Python tuples and lists neither add up nor compare equal, but torch's operators return lists
// for Python's tuples.
bool GraphBuilder::is_python_tuple(Value* value) const {
  if (is_tuple(value->type())) return !written_as_list_.contains(value);
  return python_tuples_.contains(value);
}

void GraphBuilder::refuse_dtype(Value* value, std::size_t place) const {
  if (dtypes_.contains(value))
    throw ExpressionError("a data type stands only in dtype=..., x.to(...), == and !=", place);
}

// A bool is no Scalar to TorchScript, though it is one to Python and to the operators.
Value* GraphBuilder::as_scalar(Value* value, std::size_t place) {
  if (value->type()->kind() != TypeKind::BoolType) return value;
  return add_node("scalar", {value}, c10::NumberType::get(), place,
                  operation([](const Stack& in) { return in[0]; }));
}

TypePtr GraphBuilder::common_type(Value* first, Value* second, std::size_t place) const {
  const TypePtr& a = first->type();
  const TypePtr& b = second->type();
  if (*a == *b) return a;
  // An int or a float, chosen at run time, is a number. A bool among them would lose its type.
  const auto is_arithmetic = [](const TypePtr& t) {
    return is_number(t) && t->kind() != TypeKind::BoolType;
  };
  if (is_arithmetic(a) && is_arithmetic(b)) return c10::NumberType::get();
  throw ExpressionError(
      "the two branches are of different types, " + describe_type(a) + " and " + describe_type(b),
      place);
}

Value* GraphBuilder::dtype_constant(const TorchDType& dtype, std::size_t place) {
  // It is a node of its own, so that it is not mistaken for an integer.
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i)
    if (dtype.scalar_type == c10::toString(static_cast<at::ScalarType>(i))) {
      Value* value = add_node("dtype", {}, c10::IntType::get(), place,
                              operation([i](const Stack&) { return IValue(std::int64_t{i}); }));
      dtypes_.insert(value);
      return value;
    }
  throw ExpressionError("this torch has no " + std::string(dtype.name), place);
}

// If the schema has a list, TorchScript takes the last arguments one by one for every function,
// torch.permute(x, 0, 1); Python does so for some only.
void GraphBuilder::check_lists(const c10::FunctionSchema& schema, const std::string& display,
                               const Arguments& given, std::size_t place) const {
  const bool method = display.starts_with('.');
  const std::string_view name = std::string_view(display).substr(display.rfind('.') + 1);
  if (method ? contains(kVariadicMethods, name) : contains(kVariadic, name)) return;
  std::size_t next = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (next >= given.positional.size() || argument.kwarg_only()) break;
    if (method && argument.name() == "self") continue;
    const TypePtr& type = given.positional[next++]->type();
    const bool needs_list = is_list(unwrapped_optional(argument.type())) && !argument.N();
    if (needs_list && !is_list(type) && !is_tuple(type) && type->kind() != TypeKind::NoneType)
      throw ExpressionError(
          display + ": the argument " + argument.name() + " must be a list or tuple", place);
  }
}

Value* GraphBuilder::aten(const char* name, const std::vector<Value*>& inputs, std::size_t place) {
  return call_overloads(pure_overloads(std::string("aten::") + name, false), name, {inputs, {}},
                        place);
}

// Calls an operator with arguments in its own order.
Value* GraphBuilder::call_operator(const std::vector<Value*>& values, const std::string& qualified,
                                   const std::string& display, std::size_t place) {
  // Arguments that are keyword-only in ATen's signature are positional in ours.
  Arguments given;
  const Overloads& overloads = pure_overloads(qualified, false);
  const auto& schema_arguments = overloads.at(0)->schema().arguments();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < schema_arguments.size() && schema_arguments[i].kwarg_only())
      given.keywords.emplace_back(schema_arguments[i].name(), values[i]);
    else
      given.positional.push_back(values[i]);
  }
  return call_overloads(overloads, display, given, place);
}

std::vector<NamedValue> GraphBuilder::named(
    const std::vector<std::pair<std::string, Value*>>& keywords) {
  std::vector<NamedValue> result;
  for (const auto& [name, value] : keywords) result.emplace_back(name, value);
  return result;
}

std::vector<Value*> GraphBuilder::match(const c10::FunctionSchema& schema,
                                        const std::string& display, const Arguments& given,
                                        std::size_t place) {
  Arguments converted = given;
  convert_numbers(schema, converted, std::nullopt, place);
  const std::vector<NamedValue> positional(converted.positional.begin(),
                                           converted.positional.end());
  try {
    return torch::jit::matchSchema(schema, range(place), graph(), positional,
                                   named(converted.keywords))
        .inputs;
  } catch (const std::exception& error) {
    throw ExpressionError(display + ": " + mismatch_text(error), place);
  }
}

// Calls one of the overloads, chosen by TorchScript's rules. For a method the first value is
// `self`.
Value* GraphBuilder::call_overloads(const Overloads& overloads, const std::string& display,
                                    const Arguments& all, std::size_t place, bool method) {
  if (overloads.empty()) throw ExpressionError("this torch has no " + display, place);
  check_keywords(overloads, display, all.keywords, place);
  std::optional<NamedValue> self;
  Arguments given = all;
  if (method) {
    self = NamedValue("self", given.positional[0]);
    given.positional.erase(given.positional.begin());
  }
  std::vector<const c10::FunctionSchema*> schemas;
  for (const auto& op : overloads) schemas.push_back(&op->schema());
  const std::vector<NamedValue> positional(given.positional.begin(), given.positional.end());
  try {
    auto [index, matched] = torch::jit::matchSchemas(schemas, range(place), graph(), positional,
                                                     named(given.keywords), self);
    check_lists(overloads[index]->schema(), display, given, place);
    return insert_operator(overloads[index], matched, place);
  } catch (const ExpressionError&) {
    throw;
  } catch (const std::exception&) {
    return call_converted(overloads, display, given, self, place);
  }
}

void GraphBuilder::check_keywords(const Overloads& overloads, const std::string& display,
                                  const std::vector<std::pair<std::string, Value*>>& keywords,
                                  std::size_t place) {
  if (keywords.empty()) return;
  std::vector<std::string> known{"input"};  // Python's name of `self` in functions
  for (const auto& op : overloads)
    for (const c10::Argument& argument : op->schema().arguments()) known.push_back(argument.name());
  for (const auto& [name, value] : keywords)
    if (!contains(known, name))
      throw ExpressionError(display + " has no argument " + name + did_you_mean(name, known),
                            place);
}

// Tries again with Python's conversions that TorchScript does not make: int to float, bool to
// number.
Value* GraphBuilder::call_converted(const Overloads& overloads, const std::string& display,
                                    const Arguments& given, const std::optional<NamedValue>& self,
                                    std::size_t place) {
  std::string reason;
  for (const auto& op : overloads) {
    Arguments converted = given;
    convert_numbers(op->schema(), converted, self, place);
    const std::vector<NamedValue> positional(converted.positional.begin(),
                                             converted.positional.end());
    try {
      auto matched = torch::jit::matchSchema(op->schema(), range(place), graph(), positional,
                                             named(converted.keywords), self);
      check_lists(op->schema(), display, converted, place);
      return insert_operator(op, matched, place);
    } catch (const ExpressionError&) {
      throw;
    } catch (const std::exception& error) {
      const std::string text = mismatch_text(error);
      // A reason about one argument says more than one about their number.
      if (reason.empty() ||
          (text.starts_with("Expected a value") && !reason.starts_with("Expected a value")))
        reason = text;
    }
  }
  throw ExpressionError(display + ": " + (reason.empty() ? "the arguments do not fit" : reason),
                        place);
}

void GraphBuilder::convert_numbers(const c10::FunctionSchema& schema, Arguments& given,
                                   const std::optional<NamedValue>& self, std::size_t place) {
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
    if (!dtypes_.contains(*value))
      *value = converted(*value, unwrapped_optional(argument.type()), place);
  }
}

Value* GraphBuilder::converted(Value* value, const TypePtr& wanted, std::size_t place) {
  const TypeKind have = value->type()->kind();
  if (wanted->kind() == TypeKind::FloatType &&
      (have == TypeKind::IntType || have == TypeKind::NumberType))
    return add_node("float", {value}, c10::FloatType::get(), place,
                    operation([](const Stack& in) { return to_python_float(in[0]); }));
  if (wanted->kind() == TypeKind::NumberType && have == TypeKind::BoolType)
    return as_scalar(value, place);
  if (wanted->kind() == TypeKind::IntType && have == TypeKind::NumberType)
    return add_node("integer", {value}, c10::IntType::get(), place, operation([](const Stack& in) {
                      if (!in[0].isInt()) throw NumberError("a float stands where an integer must");
                      return in[0];
                    }));
  return value;
}

Value* GraphBuilder::insert_operator(const std::shared_ptr<torch::jit::Operator>& op,
                                     const torch::jit::MatchedSchema& matched, std::size_t place) {
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

// Data types are ints to TorchScript; here no int is a data type, and no data type an int.
void GraphBuilder::check_inputs(const c10::FunctionSchema& schema,
                                const std::vector<Value*>& inputs, std::size_t place) const {
  // TorchScript makes a list of a lone size: torch.zeros(torch.float64).
  const auto refuse_in_list = [&](Value* value) {
    if (value->node()->kind() != torch::jit::prim::ListConstruct) return;
    for (Value* element : value->node()->inputs()) refuse_dtype(element, place);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool is_dtype = dtypes_.contains(inputs[i]);
    refuse_in_list(inputs[i]);
    if (argument.name() == "dtype") {
      const bool is_default =
          argument.default_value() && torch::jit::toIValue(inputs[i]) == argument.default_value();
      if (!is_dtype && !is_default && inputs[i]->type()->kind() == TypeKind::IntType)
        throw ExpressionError("dtype must be a data type such as torch.float32", place);
    } else if (is_dtype) {
      refuse_dtype(inputs[i], place);
    }
  }
}
}  // namespace distgrad
