// Compiles the scenario language: Python syntax, limited to an allow-list of pure tensor functions.
// Only this header uses torch's front end. Single-threaded. The first compilation in a process
// takes some 10 ms, in which torch sets up its operators, later ones a tenth of a millisecond;
// compile anything before forking.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/dtype.h"

namespace distgrad {

// Reports an expression that does not compile, is forbidden, or is no tensor. `caret` is its text,
// a newline, and spaces with a '^' under the place; empty if there is no place.
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
  // Has the scope's names that the text uses, in the order in which value() takes their values.
  virtual const std::vector<std::string>& names() const = 0;
  // Runs ordinary eager ATen operators, which autograd records. Throws InvalidExpression with
  // torch's message, in one line, if an operator refuses its arguments (shapes).
  virtual c10::IValue value(std::vector<c10::IValue> values) const = 0;
  // Returns the value as a tensor. Not for an expression compiled with NumberResult::kKeep.
  at::Tensor evaluate(std::vector<c10::IValue> values) const {
    return value(std::move(values)).toTensor();
  }
};

enum class NumberResult {
  kRefuse,  // a number is not a tensor: InvalidExpression with a hint
  kAccept,  // a number becomes a scalar tensor of the dtype (inputs' `expr`, the file's `truth`,
            // shape entries)
  kKeep,    // the value may be anything: a tensor, a number, a list (arguments of a `call`)
};

// Compiles once per (text, types of the names used, dtype) and process, as long as the text is
// among the last few thousand used; calls then return the same object. Texts that differ only in
// names and numbers share code. Tensor constructors that would give torch's default dtype give
// `dtype`. Callers set nothing: this call and evaluate() set torch's default dtype themselves.
std::shared_ptr<const CompiledExpression> compile_expression(
    const std::string& text, const Scope& scope, DType dtype,
    NumberResult numbers = NumberResult::kRefuse);

// Returns the scope's names that the text uses, without attributes, keyword names or variables of
// comprehensions. Throws InvalidExpression if the text is no expression.
std::vector<std::string> names_used(const std::string& text, const Scope& scope);

}  // namespace distgrad
