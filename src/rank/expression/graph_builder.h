// Puts operators into a graph. TorchScript's schema matching chooses overloads and converts
// arguments; where Python differs, this class corrects it: data types are no integers, an int may
// stand for a float, lists are no tuples.
#pragma once

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rank/expression/allow_list.h"
#include "rank/expression/emitted_graph.h"
#include "rank/expression/operators.h"

namespace distgrad {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;
using torch::jit::NamedValue;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;
using torch::jit::Value;

inline bool is_tensor(const TypePtr& type) { return type->kind() == TypeKind::TensorType; }
inline bool is_list(const TypePtr& type) { return type->kind() == TypeKind::ListType; }
inline bool is_tuple(const TypePtr& type) { return type->kind() == TypeKind::TupleType; }
inline bool is_integer(const TypePtr& type) {  // or may be one at run time
  return type->kind() == TypeKind::IntType || type->kind() == TypeKind::BoolType ||
         type->kind() == TypeKind::NumberType;
}
inline TypePtr element_type(const TypePtr& list) {
  return list->expectRef<c10::ListType>().getElementType();
}

// Returns "a list of tensors", for messages.
std::string describe_type(const TypePtr&);

template <typename Range>
bool contains(const Range& range, std::string_view name) {
  return std::find(std::begin(range), std::end(range), name) != std::end(range);
}

// Makes an operation of a function of the inputs.
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

class GraphBuilder {
 protected:
  explicit GraphBuilder(const std::string& text);

  torch::jit::Graph& graph() { return *out_.graph; }

  // All of these take the place in the text, for messages.
  Value* constant(const IValue& value, std::size_t place);
  Value* none(std::size_t place) { return constant(IValue(), place); }
  Value* dtype_constant(const TorchDType& dtype, std::size_t place);
  // Adds a node of our own.
  Value* add_node(const char* name, const std::vector<Value*>& inputs, const TypePtr& type,
                  std::size_t place, Operation op);

  Value* tuple(const std::vector<Value*>& values, std::size_t place);
  Value* list_or_tuple(const std::vector<Value*>& values, std::size_t place);
  std::vector<Value*> tuple_elements(Value* value);
  Value* as_list(Value* value, std::size_t place);
  bool is_python_tuple(Value* value) const;
  Value* as_scalar(Value* value, std::size_t place);
  TypePtr common_type(Value* first, Value* second, std::size_t place) const;
  void refuse_dtype(Value* value, std::size_t place) const;

  // Calls the operator aten::NAME on values in its own order.
  Value* aten(const char* name, const std::vector<Value*>& inputs, std::size_t place);
  // Does the same for many arguments, of which the last may be keyword-only.
  Value* call_operator(const std::vector<Value*>& values, const std::string& qualified,
                       const std::string& display, std::size_t place);
  // Calls as Python does. `display` is the function's name in messages, "torch.sum" or ".sum". For
  // a method the first positional argument is `self`.
  Value* call_overloads(const Overloads& overloads, const std::string& display,
                        const Arguments& given, std::size_t place, bool method = false);
  // Puts the arguments in the order of a signature of ours.
  std::vector<Value*> match(const c10::FunctionSchema& schema, const std::string& display,
                            const Arguments& given, std::size_t place);

  EmittedGraph out_;
  std::unordered_set<const Value*> dtypes_;         // data types, which are ints to TorchScript
  std::unordered_set<const Value*> python_tuples_;  // lists to torch, tuples to Python
  std::unordered_map<const Value*, std::vector<std::string>> fields_;  // of named tuples

 private:
  torch::jit::SourceRange range(std::size_t place) const;
  static std::vector<NamedValue> named(const std::vector<std::pair<std::string, Value*>>& keywords);
  static void check_keywords(const Overloads& overloads, const std::string& display,
                             const std::vector<std::pair<std::string, Value*>>& keywords,
                             std::size_t place);
  void check_lists(const c10::FunctionSchema& schema, const std::string& display,
                   const Arguments& given, std::size_t place) const;
  void check_inputs(const c10::FunctionSchema& schema, const std::vector<Value*>& inputs,
                    std::size_t place) const;
  Value* call_converted(const Overloads& overloads, const std::string& display,
                        const Arguments& given, const std::optional<NamedValue>& self,
                        std::size_t place);
  void convert_numbers(const c10::FunctionSchema& schema, Arguments& given,
                       const std::optional<NamedValue>& self, std::size_t place);
  Value* converted(Value* value, const TypePtr& wanted, std::size_t place);
  Value* insert_operator(const std::shared_ptr<torch::jit::Operator>& op,
                         const torch::jit::MatchedSchema& matched, std::size_t place);

  std::shared_ptr<torch::jit::Source> source_;
  std::unordered_set<const Value*> written_as_list_;  // tuples to us, lists to Python
};

}  // namespace distgrad
