// Does arithmetic on numbers as Python does. TorchScript differs: 2 ** rank is a float there, 1.0
// // 0.1 is 10, division by zero is inf or a crash, and integers wrap around.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace distgrad {

// Reports what Python would raise, or a result that a 64-bit number cannot hold.
class NumberError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns true if values of the type are Python's int, float or bool, or a number of unknown type.
bool is_number(const c10::TypePtr&);

// Takes "+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<" or ">>".
c10::IValue number_binary(std::string_view op, const c10::IValue& left, const c10::IValue& right);
// Returns the type of the result, `number` if it depends on the values, or null if Python has no
// such operator. `exponent` is the right operand, if known.
c10::TypePtr number_binary_type(std::string_view op, const c10::TypePtr& left,
                                const c10::TypePtr& right,
                                const std::optional<c10::IValue>& exponent);

// Takes "<", ">", "<=", ">=", "==" or "!=".
bool number_compare(std::string_view op, const c10::IValue& left, const c10::IValue& right);

// Takes "-", "+", "~" or "abs".
c10::IValue number_unary(std::string_view op, const c10::IValue&);
c10::TypePtr number_unary_type(std::string_view op, const c10::TypePtr&);  // null: no such operator

// Do what Python's int(), float() and bool() do.
c10::IValue to_python_int(const c10::IValue&);
c10::IValue to_python_float(const c10::IValue&);
c10::IValue to_python_bool(const c10::IValue&);

}  // namespace distgrad
