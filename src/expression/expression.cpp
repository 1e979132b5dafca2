#include "expression/expression.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/lift_fresh.h>
#include <ATen/ops/scalar_tensor.h>

#include <unordered_map>
#include <utility>

#include "expression/emitter.h"
#include "expression/evaluation_scope.h"
#include "expression/graph_builder.h"
#include "expression/instructions.h"
#include "expression/lowering.h"
#include "expression/numbers.h"
#include "expression/syntax.h"

namespace distgrad {
namespace {

using c10::IValue;
using c10::TypePtr;

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
  }
  return at::kDouble;
}

TypePtr type_of(NameType type) {
  switch (type) {
    case NameType::kTensor:
      return c10::TensorType::get();
    case NameType::kInt:
      return c10::IntType::get();
    case NameType::kTensorList:
      return c10::ListType::ofTensors();
  }
  return c10::TensorType::get();
}

// The text on one line, and a '^' under the byte at `place`, which may be the end.
std::string caret_under(const std::string& text, std::size_t place) {
  std::string line, indent;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool continues_character = (c & 0xc0) == 0x80;
    line += c < 0x20 ? ' ' : text[i];
    if (i < place && !continues_character) indent += ' ';
  }
  return line + "\n" + indent + "^";
}

InvalidExpression invalid(const std::string& text, const ExpressionError& error) {
  return InvalidExpression(error.what(), text.empty() ? "" : caret_under(text, error.place()));
}

class Compiled : public CompiledExpression {
 public:
  Compiled(std::string text, std::vector<std::string> names, DType dtype,
           InstructionList instructions)
      : text_(std::move(text)),
        names_(std::move(names)),
        dtype_(scalar_type(dtype)),
        instructions_(std::move(instructions)) {}

  const std::vector<std::string>& names() const override { return names_; }

  at::Tensor evaluate(std::vector<IValue> values) const override {
    TORCH_CHECK(values.size() == names_.size(), "expression ", text_, " takes ", names_.size(),
                " values, not ", values.size());
    const EvaluationScope scope(dtype_);
    try {
      IValue result = run_instructions(instructions_, std::move(values));
      if (result.isTensor()) return std::move(result).toTensor();
      // lift_fresh, as torch.tensor does, tells the dispatcher of a constant.
      return at::lift_fresh(
          at::scalar_tensor(result.toScalar(), at::TensorOptions().dtype(dtype_)));
    } catch (const ExpressionError& error) {
      throw invalid(text_, error);
    }
  }

 private:
  std::string text_;
  std::vector<std::string> names_;
  at::ScalarType dtype_;
  InstructionList instructions_;
};

[[noreturn]] void refuse_result(const TypePtr& type, std::size_t place) {
  std::string hint;
  if (is_number(type)) hint = "; write torch.tensor(...)";
  if (type->kind() == c10::TypeKind::TupleType) hint = "; take one element, such as [0]";
  if (type->kind() == c10::TypeKind::ListType)
    hint = *type == *c10::ListType::ofTensors() ? "; write torch.stack(...) or torch.cat(...)"
                                                : "; write torch.tensor(...)";
  throw ExpressionError("this is " + describe_type(type) + ", not a tensor" + hint, place);
}

std::shared_ptr<const CompiledExpression> compile(const std::string& text, const Syntax& tree,
                                                  const Scope& scope,
                                                  const std::vector<std::string>& used, DType dtype,
                                                  NumberResult numbers) {
  std::vector<std::pair<std::string, TypePtr>> inputs;
  for (const std::string& name : used) inputs.emplace_back(name, type_of(scope.at(name)));
  std::vector<std::string> all_names;
  for (const auto& [name, type] : scope) all_names.push_back(name);
  const EmittedGraph graph = emit_graph(tree, text, inputs, all_names);
  const TypePtr& type = graph.result->type();
  const bool accepted = type->kind() == c10::TypeKind::TensorType ||
                        (numbers == NumberResult::kAccept && is_number(type));
  if (!accepted) refuse_result(type, tree.place);
  return std::make_shared<Compiled>(text, used, dtype, lower(graph));
}

std::vector<std::string> used_of(const Syntax& tree, const Scope& scope) {
  std::vector<std::string> used;
  for (const std::string& name : free_names(tree))
    if (scope.contains(name)) used.push_back(name);
  return used;
}

// What the compiled expression depends on.
std::string cache_key(const std::string& text, const std::vector<std::string>& used,
                      const Scope& scope, DType dtype, NumberResult numbers) {
  std::string key = text;
  key += '\0';
  key += static_cast<char>('0' + static_cast<int>(dtype));
  key += numbers == NumberResult::kAccept ? 'n' : 't';
  for (const std::string& name : used)
    key += name + static_cast<char>('0' + static_cast<int>(scope.at(name)));
  return key;
}

}  // namespace

std::shared_ptr<const CompiledExpression> compile_expression(const std::string& text,
                                                             const Scope& scope, DType dtype,
                                                             NumberResult numbers) {
  // Leaked, so that no tensor type is freed after torch's own statics.
  static auto& cache =
      *new std::unordered_map<std::string, std::shared_ptr<const CompiledExpression>>;
  try {
    const SyntaxPtr tree = parse_expression(text);
    const std::vector<std::string> used = used_of(*tree, scope);
    std::shared_ptr<const CompiledExpression>& entry =
        cache[cache_key(text, used, scope, dtype, numbers)];
    if (!entry) entry = compile(text, *tree, scope, used, dtype, numbers);
    return entry;
  } catch (const ExpressionError& error) {
    throw invalid(text, error);
  }
}

std::vector<std::string> names_used(const std::string& text, const Scope& scope) {
  try {
    return used_of(*parse_expression(text), scope);
  } catch (const ExpressionError& error) {
    throw invalid(text, error);
  }
}

}  // namespace distgrad
