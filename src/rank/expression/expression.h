// The scenario language: Python syntax as TorchScript compiles it, limited to an allow-list of pure
// tensor functions. The only header behind which torch's front end is used. Single-threaded. The
// first compilation in a process takes some 10 ms (torch sets up its operators), later ones a tenth
// of one: compile anything before forking.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/dtype.h"

namespace distgrad {

// An expression that does not compile, is forbidden, or is not a tensor. `caret` is the
// expression's text, a newline, and spaces with a '^' under the place; empty where there is no
// place.
class InvalidExpression : public std::runtime_error {
 public:
  InvalidExpression(const std::string& message, std::string caret)
      : std::runtime_error(message), caret_(std::move(caret)) {}
  const std::string& caret() const { return caret_; }

 private:
  std::string caret_;
};

enum class NameType { kTensor, kInt, kTensorList };
using Scope = std::map<std::string, NameType>;  // the names an expression may use

class CompiledExpression {
 public:
  virtual ~CompiledExpression() = default;
  // The scope's names that the text uses, in the order evaluate() wants their values.
  virtual const std::vector<std::string>& names() const = 0;
  // The value: always a tensor. Runs ordinary eager ATen operators (autograd records them as
  // usual). Throws InvalidExpression with torch's message, made one line, when an operator refuses
  // its arguments (shapes).
  virtual at::Tensor evaluate(std::vector<c10::IValue> values) const = 0;
};

enum class NumberResult {
  kRefuse,  // a number is not a tensor: InvalidExpression with a hint
  kAccept,  // a number becomes a scalar tensor of the dtype (inputs' `expr`, the file's `truth`,
            // shape entries)
};

// Compiles once per (text, types of the names used, dtype) and process, as long as the text is
// among the some thousand last used ones: then calls return the same object. Texts that differ in
// names and numbers alone share what is compiled. Where a tensor constructor would give torch's
// default dtype it gives `dtype`. The caller has set nothing: this call and evaluate() take care of
// torch's default dtype themselves.
std::shared_ptr<const CompiledExpression> compile_expression(
    const std::string& text, const Scope& scope, DType dtype,
    NumberResult numbers = NumberResult::kRefuse);

// The scope's names that the text takes: not attributes, keyword arguments' names or variables of
// comprehensions. Throws InvalidExpression where the text is not an expression.
std::vector<std::string> names_used(const std::string& text, const Scope& scope);

}  // namespace distgrad
