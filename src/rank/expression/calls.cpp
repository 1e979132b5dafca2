// Emits attributes and calls: torch's functions, tensors' methods, Python's functions.
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/csrc/jit/ir/constants.h>

#include <iterator>
#include <limits>

#include "base/did_you_mean.h"
#include "rank/expression/allow_list.h"
#include "rank/expression/emission.h"
#include "rank/expression/numbers.h"

namespace distgrad {
namespace {

using Kind = Syntax::Kind;

// These are refused for every function, wherever torch takes them.
constexpr std::string_view kRefusedKeywords[] = {"device",        "generator",    "layout",
                                                 "memory_format", "names",        "out",
                                                 "pin_memory",    "requires_grad"};

// torch.nn.functional demands equal shapes of the first list's operands, and broadcasts the
// second's.
constexpr std::string_view kEqualShapesLosses[] = {"binary_cross_entropy",
                                                   "binary_cross_entropy_with_logits"};
constexpr std::string_view kBroadcastingLosses[] = {"huber_loss", "l1_loss", "mse_loss",
                                                    "smooth_l1_loss"};

}  // namespace

// ---- attributes and calls

// Emits a torch function or constant, or the attribute of a value.
Value* Emitter::attribute(const Syntax& node) {
  const std::string dotted = dotted_name(node);
  if (dotted.starts_with("torch.")) return torch_attribute(node, dotted.substr(6));
  Value* object = emit(*node.children[0]);
  refuse_dtype(object, node.place);
  if (is_tuple(object->type())) return field(node, object);
  if (!is_tensor(object->type()))
    throw ExpressionError(describe_type(object->type()) + " has no attribute " + node.text,
                          node.place);
  for (const AllowedAttribute& allowed : allowed_attributes())
    if (allowed.name == node.text) {
      Value* value = call_overloads(pure_overloads(std::string(allowed.operator_name), false),
                                    "." + node.text, {{object}, {}}, node.place);
      if (node.text == "dtype") dtypes_.insert(value);
      return value;
    }
  if (is_allowed(node.text, kMethod))
    throw ExpressionError("." + node.text + " is a method; call it", node.place);
  refuse_method(node);
}

// Emits a field of a named tuple, x.max(0).values.
Value* Emitter::field(const Syntax& node, Value* tuple) {
  const auto fields = fields_.find(tuple);
  if (fields != fields_.end()) {
    const auto at = std::find(fields->second.begin(), fields->second.end(), node.text);
    if (at != fields->second.end()) return tuple_elements(tuple)[at - fields->second.begin()];
  }
  throw ExpressionError("this tuple has no field " + node.text, node.place);
}

Value* Emitter::torch_attribute(const Syntax& node, const std::string& name) {
  for (const TorchConstant& known : torch_constants())
    if (known.name == name) return constant(known.value, node.place);
  for (const TorchDType& known : torch_dtypes())
    if (known.name == name) return dtype_constant(known, node.place);
  if (is_allowed(name, kFunction))
    throw ExpressionError("torch." + name + " is a function; call it", node.place);
  refuse_torch_name(node);
}

// `node` is the attribute chain torch.a.b.
void Emitter::refuse_torch_name(const Syntax& node) {
  const std::string dotted = dotted_name(node);
  const std::string path = dotted.substr(0, dotted.rfind('.'));
  const std::string first = dotted.substr(6, dotted.find('.', 6) - 6);
  std::vector<std::string> known;
  if (path == "torch") known = allowed_names(kFunction);
  if (path == "torch.linalg") known = allowed_names(kLinalg);
  if (path == "torch.nn.functional")
    for (const FunctionalFunction& function : functional_functions())
      known.emplace_back(function.name);
  if (path == "torch") {
    for (const TorchDType& dtype : torch_dtypes()) known.emplace_back(dtype.name);
    for (const TorchConstant& value : torch_constants()) known.emplace_back(value.name);
  }
  std::string hint = reason_for_refusal(node.text);
  if (hint.empty() && path == "torch" &&
      (is_allowed(node.text, kMethod) || node.text.starts_with("linalg_")))
    hint = node.text.starts_with("linalg_") ? "; write torch.linalg." + node.text.substr(7)
                                            : "; it is a method, write x." + node.text + "(...)";
  const bool is_torchs = is_known_impure(first) || is_known_impure(node.text) ||
                         (path == "torch" && exists_in_torch("aten::" + node.text));
  if (hint.empty() && !is_torchs) hint = did_you_mean(node.text, known);
  throw ExpressionError(
      dotted + " is not a pure tensor function and is not allowed in a scenario" + hint,
      node.place);
}

// `node` is F.name, as in scripts that import torch.nn.functional.
void Emitter::refuse_functional(const Syntax& node) {
  const std::string instead = reason_for_refusal(node.text);
  throw ExpressionError(
      "unknown name \"F\"" +
          (instead.empty() ? "; write torch.nn.functional." + node.text : instead),
      node.children[0]->place);
}

void Emitter::refuse_method(const Syntax& node) {
  std::string hint = reason_for_refusal(node.text);
  if (hint.empty() && is_allowed(node.text, kFunction))
    hint = "; write torch." + node.text + "(...)";
  std::vector<std::string> known = allowed_names(kMethod);
  for (const AllowedAttribute& attribute : allowed_attributes()) known.emplace_back(attribute.name);
  if (hint.empty() && !is_known_impure(node.text)) hint = did_you_mean(node.text, known);
  throw ExpressionError(
      "." + node.text + " is not a pure tensor function and is not allowed in a scenario" + hint,
      node.place);
}

Value* Emitter::call(const Syntax& node) {
  const Syntax& callee = *node.children[0];
  if (callee.kind == Kind::kName && !names_.contains(callee.text))
    return python_call(node, callee.text);
  if (callee.kind == Kind::kAttribute) {
    const std::string dotted = dotted_name(callee);
    if (dotted.starts_with("torch.")) return torch_call(node, dotted.substr(6));
    if (dotted.starts_with("F.") && !names_.contains("F")) refuse_functional(callee);
    return method_call(node, callee);
  }
  throw ExpressionError(
      callee.kind == Kind::kName ? callee.text + " is not a function" : "this is not a function",
      callee.place);
}

std::vector<Value*> Emitter::emit_all(const Syntax& node, std::size_t first) {
  std::vector<Value*> values;
  for (std::size_t i = first; i < node.children.size(); ++i)
    values.push_back(emit(*node.children[i]));
  return values;
}

Arguments Emitter::arguments(const Syntax& node) {
  Arguments result;
  result.positional = emit_all(node, 1);
  for (const auto& [name, value] : node.keywords) {
    if (contains(kRefusedKeywords, name))
      throw ExpressionError("the argument " + name + " is not allowed in a scenario", value->place);
    result.keywords.emplace_back(name, emit(*value));
  }
  return result;
}

Value* Emitter::method_call(const Syntax& node, const Syntax& callee) {
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
  return call_overloads(pure_overloads("aten::" + operator_of(callee.text), true), display, given,
                        callee.place, /*method=*/true);
}

// Adds Python's default p="fro", which is 2 for vectors; ATen has no default beside dim.
void Emitter::complete_norm(const std::string& name, Arguments& given, std::size_t first,
                            std::size_t place) {
  const auto has = [&](std::string_view keyword) {
    return std::any_of(given.keywords.begin(), given.keywords.end(),
                       [&](auto& k) { return k.first == keyword; });
  };
  if (name == "norm" && given.positional.size() == first && has("dim") && !has("p"))
    given.keywords.emplace_back("p", constant(2, place));
}

// Maps Python's names to ATen's if they differ.
std::string Emitter::operator_of(const std::string& name) {
  if (name == "ndimension") return "dim";
  if (name == "nelement") return "numel";
  return name;
}

// Emits x.float() and so on.
Value* Emitter::cast(const Syntax& callee, Value* object, const Arguments& given) {
  static constexpr std::string_view kCasts[] = {"bfloat16", "bool", "double", "float",
                                                "half",     "int",  "long",   "short"};
  if (!contains(kCasts, callee.text)) return nullptr;
  if (!given.positional.empty() || !given.keywords.empty())
    throw ExpressionError("." + callee.text + "() takes no arguments here", callee.place);
  for (const TorchDType& dtype : torch_dtypes())
    if (dtype.name == callee.text)
      return aten("to", {object, dtype_constant(dtype, callee.place)}, callee.place);
  return nullptr;
}

Value* Emitter::torch_call(const Syntax& node, const std::string& name) {
  const Syntax& callee = *node.children[0];
  if (name.starts_with("nn.functional.")) return functional_call(node, name.substr(14));
  const bool linalg = name.starts_with("linalg.");
  const std::string plain = linalg ? name.substr(7) : name;
  if (plain.find('.') != std::string::npos || !is_allowed(plain, linalg ? kLinalg : kFunction))
    refuse_torch_name(callee);
  Arguments given = arguments(node);
  if (name == "tensor") return tensor_call(node, given);
  complete_norm(name, given, 1, callee.place);
  const Overloads& overloads =
      pure_overloads("aten::" + (linalg ? "linalg_" + plain : plain), false);
  return call_overloads(overloads, "torch." + name, given, callee.place);
}

Value* Emitter::tensor_call(const Syntax& node, const Arguments& given) {
  const std::size_t place = node.children[0]->place;
  if (given.positional.size() != 1) throw ExpressionError("torch.tensor takes one value", place);
  std::vector<Value*> inputs{given.positional[0]};
  refuse_dtype(inputs[0], place);
  for (const auto& [name, value] : given.keywords) {
    if (name != "dtype")
      throw ExpressionError("torch.tensor has no argument " + name + " here", place);
    if (!dtypes_.contains(value)) throw ExpressionError("dtype must be a data type", place);
    inputs.push_back(value);
  }
  if (!holds_only_numbers(inputs[0]->type()))
    throw ExpressionError(
        "torch.tensor takes numbers and lists of numbers; join tensors with torch.stack", place);
  Value* result =
      add_node("tensor", inputs, c10::TensorType::get(), place, operation([](const Stack& in) {
                 std::optional<at::ScalarType> dtype;
                 if (in.size() > 1) dtype = static_cast<at::ScalarType>(in[1].toInt());
                 return IValue(tensor_from(in[0], dtype));
               }));
  return result;
}

bool Emitter::holds_only_numbers(const TypePtr& type) {
  if (!is_list(type) && !is_tuple(type)) return is_number(type);
  const auto inner = type->containedTypes();
  return std::all_of(inner.begin(), inner.end(), holds_only_numbers);
}

// ---- torch.nn.functional

Value* Emitter::functional_call(const Syntax& node, const std::string& name) {
  const Syntax& callee = *node.children[0];
  const auto all = functional_functions();
  const auto function =
      std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.name == name; });
  if (function == all.end()) refuse_torch_name(callee);
  Arguments given = arguments(node);
  const std::string display = "torch.nn.functional." + name;
  const std::string qualified = "aten::" + std::string(function->operator_name);
  if (function->arguments.empty()) {
    return call_overloads(pure_overloads(qualified, false), display, given, callee.place);
  }
  const c10::FunctionSchema& schema = functional_schema(*function);
  std::vector<Value*> values = match(schema, display, given, callee.place);
  if (contains(kBroadcastingLosses, name)) broadcast(values, callee.place);
  if (contains(kEqualShapesLosses, name))
    values[0] = add_node("equal_shapes", {values[0], values[1]}, c10::TensorType::get(),
                         callee.place, operation([](const Stack& in) {
                           if (in[0].toTensor().sizes() != in[1].toTensor().sizes())
                             throw NumberError("input and target have different shapes");
                           return in[0];
                         }));
  const bool batch_mean = convert_reduction(schema, values, name == "kl_div", callee.place);
  Value* result =
      call_operator(reordered(values, function->order), qualified, display, callee.place);
  if (!batch_mean) return result;
  // torch.nn.functional.kl_div does the same: the sum over input.size(0).
  return aten("div", {result, aten("size", {values[0], constant(0, callee.place)}, callee.place)},
              callee.place);
}

// Broadcasts as torch.nn.functional does before it calls the operator, whose own backward is wrong
// for shapes that differ.
void Emitter::broadcast(std::vector<Value*>& values, std::size_t place) {
  Value* both = list_or_tuple({values[0], values[1]}, place);
  Value* list = aten("broadcast_tensors", {both}, place);
  for (std::int64_t i = 0; i < 2; ++i)
    values[i] = add_node("element", {list, constant(i, place)}, c10::TensorType::get(), place,
                         operation([](const Stack& in) { return list_element(in[0], in[1]); }));
}

const c10::FunctionSchema& Emitter::functional_schema(const FunctionalFunction& function) {
  static std::unordered_map<std::string_view, c10::FunctionSchema> cache;
  const auto found = cache.find(function.name);
  if (found != cache.end()) return found->second;
  const std::string text = "functional::" + std::string(function.name) + "(" +
                           std::string(function.arguments) + ") -> Tensor";
  return cache.emplace(function.name, torch::jit::parseSchema(text)).first->second;
}

std::vector<Value*> Emitter::reordered(const std::vector<Value*>& values, std::string_view order) {
  if (order.empty()) return values;
  std::vector<Value*> result;
  for (char digit : order) result.push_back(values[digit - '0']);
  return result;
}

// Turns Python's reduction='mean' into ATen's enumeration. Returns true for kl_div's "batchmean",
// which becomes a sum.
bool Emitter::convert_reduction(const c10::FunctionSchema& schema, std::vector<Value*>& values,
                                bool with_batch_mean, std::size_t place) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (schema.arguments()[i].name() != "reduction") continue;
    const auto text = torch::jit::toIValue(values[i]);
    const std::string reduction = text && text->isString() ? text->toStringRef() : "";
    const bool batch_mean = with_batch_mean && reduction == "batchmean";
    if (reduction != "none" && reduction != "mean" && reduction != "sum" && !batch_mean)
      throw ExpressionError("reduction must be 'none', 'mean' or 'sum'", place);
    values[i] = constant(std::int64_t{reduction == "none"   ? 0
                                      : reduction == "mean" ? 1
                                                            : 2},
                         place);
    return batch_mean;
  }
  return false;
}

// ---- Python's functions

Value* Emitter::python_call(const Syntax& node, const std::string& function) {
  const std::size_t place = node.place;
  if (function == "range" || function == "zip" || function == "enumerate")
    throw ExpressionError(function + " stands only after 'in' of a comprehension", place);
  if (!contains(python_functions(), function)) refuse_python_function(function, place);
  if (!node.keywords.empty())
    throw ExpressionError(function + " takes no keyword arguments here", place);
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

void Emitter::refuse_python_function(const std::string& function, std::size_t place) const {
  static constexpr std::string_view kPythons[] = {
      "__import__", "all",    "any",        "callable", "compile", "delattr",  "dict",    "dir",
      "eval",       "exec",   "exit",       "filter",   "getattr", "globals",  "hasattr", "help",
      "id",         "input",  "isinstance", "iter",     "list",    "locals",   "map",     "next",
      "object",     "open",   "print",      "quit",     "repr",    "reversed", "round",   "set",
      "setattr",    "sorted", "str",        "super",    "tuple",   "type",     "vars"};
  if (contains(kPythons, function))
    throw ExpressionError(
        function + " is not a pure tensor function and is not allowed in a scenario", place);
  if (is_allowed(function, kFunction))
    throw ExpressionError("unknown function " + function + "; write torch." + function, place);
  std::vector<std::string> known(python_functions().begin(), python_functions().end());
  throw ExpressionError("unknown function " + function + did_you_mean(function, known), place);
}

Value* Emitter::length(Value* value, std::size_t place) {
  if (is_tuple(value->type()))
    return constant(static_cast<std::int64_t>(value->type()->containedTypes().size()), place);
  if (is_list(value->type()))
    return add_node("len", {value}, c10::IntType::get(), place, operation([](const Stack& in) {
                      return IValue(static_cast<std::int64_t>(in[0].toListRef().size()));
                    }));
  if (!is_tensor(value->type()))
    throw ExpressionError(describe_type(value->type()) + " has no length", place);
  return add_node("len", {value}, c10::IntType::get(), place, operation([](const Stack& in) {
                    if (in[0].toTensor().dim() == 0) throw NumberError("len() of a 0-d tensor");
                    return IValue(in[0].toTensor().size(0));
                  }));
}

Value* Emitter::sum(Value* value, std::size_t place) {
  if (is_tensor(value->type())) value = aten("unbind", {value}, place);
  if (is_list(value->type()) || is_tuple(value->type())) value = as_list(value, place);
  if (!is_list(value->type()))
    throw ExpressionError("sum takes a list; for a tensor write x.sum()", place);
  const TypePtr element = element_type(value->type());
  const bool tensors = is_tensor(element);
  if (!tensors && element->kind() != TypeKind::IntType && element->kind() != TypeKind::BoolType)
    // Python 3.12 began to sum floats with compensation.
    throw ExpressionError(
        "sum takes tensors or ints; Python's versions differ in how they add floats", place);
  return add_node("sum", {value},
                  tensors ? TypePtr(c10::TensorType::get()) : TypePtr(c10::IntType::get()), place,
                  operation([tensors](const Stack& in) {
                    if (tensors && in[0].toListRef().empty())
                      throw NumberError("the sum of no tensors is no tensor");
                    return sum_of(in[0]);
                  }));
}

Value* Emitter::absolute(Value* value, std::size_t place) {
  if (is_tensor(value->type())) return aten("abs", {value}, place);
  if (!is_number(value->type()))
    throw ExpressionError("abs of " + describe_type(value->type()), place);
  return add_node("abs", {value}, number_unary_type("abs", value->type()), place,
                  operation([](const Stack& in) { return number_unary("abs", in[0]); }));
}

Value* Emitter::extreme(const std::string& function, std::vector<Value*> values,
                        std::size_t place) {
  const bool largest = function == "max";
  if (values.size() == 1 && is_list(values[0]->type()) &&
      is_number(element_type(values[0]->type())))
    return add_node(function.c_str(), values, element_type(values[0]->type()), place,
                    operation([largest](const Stack& in) {
                      return extreme_of(in[0].toListRef().vec(), largest);
                    }));
  if (values.size() == 1 && is_tuple(values[0]->type())) values = tuple_elements(values[0]);
  if (values.size() < 2 || !std::all_of(values.begin(), values.end(),
                                        [](Value* value) { return is_number(value->type()); }))
    throw ExpressionError(function + " takes numbers; for tensors write torch." + function +
                              "imum(x, y), x." + function + "()",
                          place);
  TypePtr type = values[0]->type();
  for (Value* value : values)
    if (!(*value->type() == *type)) type = c10::NumberType::get();
  return add_node(function.c_str(), values, type, place,
                  operation([largest](const Stack& in) { return extreme_of(in, largest); }));
}

Value* Emitter::conversion(const std::string& function, Value* value, std::size_t place) {
  if (function == "float" && value->type()->kind() == TypeKind::StringType)
    return float_of_text(value, place);
  const bool tensor = is_tensor(value->type());
  if (!tensor && !is_number(value->type()))
    throw ExpressionError(function + " of " + describe_type(value->type()), place);
  if (function == "bool") return condition(value, place);
  const TypePtr type =
      function == "int" ? TypePtr(c10::IntType::get()) : TypePtr(c10::FloatType::get());
  const auto convert = function == "int" ? to_python_int : to_python_float;
  return add_node(function.c_str(), {value}, type, place,
                  operation([tensor, convert](const Stack& in) {
                    return convert(tensor ? item_of(in[0].toTensor()) : in[0]);
                  }));
}

Value* Emitter::float_of_text(Value* value, std::size_t place) {
  const auto text = torch::jit::toIValue(value);
  for (auto [name, number] : {std::pair{"inf", std::numeric_limits<double>::infinity()},
                              {"-inf", -std::numeric_limits<double>::infinity()},
                              {"nan", std::numeric_limits<double>::quiet_NaN()}})
    if (text && text->toStringRef() == name) return constant(number, place);
  throw ExpressionError("float takes the strings 'inf', '-inf' and 'nan'", place);
}
}  // namespace distgrad
