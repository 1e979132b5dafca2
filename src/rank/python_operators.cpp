// The operators distgrad_rank::*, by which the Python of a rank calls this library. Those that run
// tensor code take a tensor, so that torch's dispatch modes see that code.
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "rank/expression/evaluation_scope.h"
#include "rank/expression/expression.h"

namespace distgrad {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Starts the texts of exceptions that ranks/language.py takes for InvalidExpression.
constexpr const char* kInvalid = "distgrad: invalid expression: ";

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::kFloat64;
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      throw std::invalid_argument(std::string("no case has the dtype ") + c10::toString(type));
  }
}

NameType type_of(const IValue& value) {
  if (value.isInt()) return NameType::kInt;
  return value.isTensor() ? NameType::kTensor : NameType::kTensorList;
}

std::vector<std::string> texts_of(const IValue& list) {
  std::vector<std::string> texts;
  for (const IValue& text : list.toListRef()) texts.push_back(text.toStringRef());
  return texts;
}

Scope scope_of(const std::vector<std::string>& names, const IValue& types) {
  Scope scope;
  for (std::size_t i = 0; i < names.size(); ++i)
    scope.emplace(names[i], static_cast<NameType>(types.toListRef()[i].toInt()));
  return scope;
}

// Calls `run`, whose InvalidExpression arrives in Python as a RuntimeError.
template <class Run>
auto told(const Run& run) {
  try {
    return run();
  } catch (const InvalidExpression& error) {
    throw std::runtime_error(kInvalid + std::string(error.what()) + "\n" + error.caret());
  }
}

// Returns the names that the text uses, once it is compiled.
constexpr const char* kCompile = "compile(str text, str[] names, int[] types) -> str[]";
void compile(const c10::OperatorHandle&, Stack* stack) {
  const std::vector<IValue> given = torch::jit::last(stack, 3).vec();
  torch::jit::drop(stack, 3);
  const Scope scope = scope_of(texts_of(given[1]), given[2]);
  c10::List<std::string> used;
  for (const std::string& name : told([&] {
         return compile_expression(given[0].toStringRef(), scope, DType::kFloat64,
                                   NumberResult::kKeep)
             ->names();
       }))
    used.push_back(name);
  stack->emplace_back(std::move(used));
}

// Returns the expression's value. `numbers` is a NumberResult. Constructors make their tensors
// where `like` is.
constexpr const char* kEvaluate =
    "evaluate(str text, str[] names, Any[] values, ScalarType dtype, int numbers, Tensor like) "
    "-> Any";
void evaluate(const c10::OperatorHandle&, Stack* stack) {
  const std::vector<IValue> given = torch::jit::last(stack, 6).vec();
  torch::jit::drop(stack, 6);
  const std::vector<std::string> names = texts_of(given[1]);
  const auto values = given[2].toListRef();
  Scope scope;
  for (std::size_t i = 0; i < names.size(); ++i) scope.emplace(names[i], type_of(values[i]));
  const ConstructorDevice there(given[5].toTensor().device());
  stack->push_back(told([&] {
    const auto code =
        compile_expression(given[0].toStringRef(), scope, dtype_of(given[3].toScalarType()),
                           static_cast<NumberResult>(given[4].toInt()));
    std::vector<IValue> taken;
    for (const std::string& name : code->names())
      taken.push_back(values[std::find(names.begin(), names.end(), name) - names.begin()]);
    return code->value(std::move(taken));
  }));
}

}  // namespace

TORCH_LIBRARY(distgrad_rank, operators) {
  const auto add = [&]<auto * function>(const char* schema) {
    operators.def(schema, torch::CppFunction::makeFromBoxedFunction<function>());
  };
  add.operator()<&compile>(kCompile);
  add.operator()<&evaluate>(kEvaluate);
}

}  // namespace distgrad
