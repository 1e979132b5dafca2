// Turns the syntax tree into a graph. Operator signs, subscripts, comprehensions and Python
// functions are written here with Python's meaning, because TorchScript's reading differs in
// places. emitter.cpp has the expressions, calls.cpp the functions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rank/expression/graph_builder.h"
#include "rank/expression/python_values.h"
#include "scenario/syntax.h"

namespace distgrad {

class Emitter : private GraphBuilder {
 public:
  Emitter(const std::string& text, const std::vector<std::string>& all_names)
      : GraphBuilder(text), all_names_(all_names) {}

  EmittedGraph run(const Syntax& tree, const std::vector<std::pair<std::string, TypePtr>>& inputs);

 private:
  // Values.
  Value* emit(const Syntax& node);
  Value* literal(const Syntax& node);
  Value* name(const Syntax& node);
  std::string unknown_name(const std::string& text) const;
  Value* sequence(const Syntax& node, bool as_list);

  // Operators.
  Value* unary(const Syntax& node);
  Value* negation(Value* truth, std::size_t place);
  Value* binary(const Syntax& node);
  [[noreturn]] void unsupported_operands(const Syntax& node, Value* left, Value* right) const;
  Value* number_operator(const Syntax& node, Value* left, Value* right);

  Value* tensor_operator(const Syntax& node, Value* left, Value* right);
  Value* reflected_operator(const Syntax& node, Value* number, Value* tensor);
  Value* list_operator(const Syntax& node, Value* left, Value* right);
  Value* wrapped(Value* number, std::size_t place);
  Value* compare(const Syntax& node);
  Value* membership(const Syntax& node, Value* left, Value* right);
  Value* tensor_comparison(const Syntax& node, Value* left, Value* right);

  // Conditions.
  Value* condition(Value* value, std::size_t place);
  Value* branch(Value* truth, std::size_t place, const std::function<Value*()>& then,
                const std::function<Value*()>& otherwise);
  Value* conditional(const Syntax& node);
  Value* short_circuit(const Syntax& node, std::size_t first);

  // Comprehensions.
  Value* comprehension(const Syntax& node);
  void bind_targets(const Syntax& node, torch::jit::Block* block, const TypePtr& type);
  void bind(const std::string& target, Value* value, std::size_t place);
  Value* iterable(const Syntax& node);
  Value* range_call(const Syntax& node);
  Value* zip_call(const Syntax& node, bool enumerate);

  // Subscripts.
  Value* subscript(const Syntax& node);
  Value* tensor_subscript(const Syntax& node, Value* tensor);
  Value* tensor_index(const Syntax& item);
  void slice_parts(const Syntax& slice, Subscript& subscript, std::vector<Value*>& inputs);
  Value* integer_part(const Syntax& part);
  Value* list_subscript(const Syntax& node, Value* list);
  Value* tuple_subscript(const Syntax& node, Value* object);

  // Attributes and calls.
  Value* attribute(const Syntax& node);
  Value* field(const Syntax& node, Value* tuple);
  Value* torch_attribute(const Syntax& node, const std::string& name);
  [[noreturn]] void refuse_torch_name(const Syntax& node);
  [[noreturn]] void refuse_functional(const Syntax& node);
  [[noreturn]] void refuse_method(const Syntax& node);
  Value* call(const Syntax& node);
  std::vector<Value*> emit_all(const Syntax& node, std::size_t first);
  Arguments arguments(const Syntax& node);
  Value* method_call(const Syntax& node, const Syntax& callee);
  void complete_norm(const std::string& name, Arguments& given, std::size_t first,
                     std::size_t place);
  static std::string operator_of(const std::string& name);
  Value* cast(const Syntax& callee, Value* object, const Arguments& given);
  Value* torch_call(const Syntax& node, const std::string& name);
  Value* tensor_call(const Syntax& node, const Arguments& given);
  static bool holds_only_numbers(const TypePtr& type);

  // torch.nn.functional.
  Value* functional_call(const Syntax& node, const std::string& name);
  void broadcast(std::vector<Value*>& values, std::size_t place);
  static const c10::FunctionSchema& functional_schema(const FunctionalFunction& function);
  static std::vector<Value*> reordered(const std::vector<Value*>& values, std::string_view order);
  bool convert_reduction(const c10::FunctionSchema& schema, std::vector<Value*>& values,
                         bool with_batch_mean, std::size_t place);

  // Python's functions.
  Value* python_call(const Syntax& node, const std::string& function);
  [[noreturn]] void refuse_python_function(const std::string& function, std::size_t place) const;
  Value* length(Value* value, std::size_t place);
  Value* sum(Value* value, std::size_t place);
  Value* absolute(Value* value, std::size_t place);
  Value* extreme(const std::string& function, std::vector<Value*> values, std::size_t place);
  Value* conversion(const std::string& function, Value* value, std::size_t place);
  Value* float_of_text(Value* value, std::size_t place);

  std::vector<std::string> all_names_;
  std::map<std::string, Value*> names_;  // what a name stands for at the moment
};

}  // namespace distgrad
