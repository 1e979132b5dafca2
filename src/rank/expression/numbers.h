// Arithmetic on Python's numbers as Python does it. TorchScript's differs: 2 ** rank is a float
// there, 1.0 // 0.1 is 10, division by zero is inf or a crash, and integers wrap around.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace distgrad {

// What Python would raise, or a result that a 64-bit number cannot hold.
class NumberError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether values of the type are Python's int, float or bool, known (int, float, bool) or not
// (number).
bool is_number(const c10::TypePtr&);

// "+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>".
c10::IValue number_binary(std::string_view op, const c10::IValue& left, const c10::IValue& right);
// The type of the result, `number` where it depends on the values; none where Python has no such
// operator. `exponent`: the right operand where it is known.
c10::TypePtr number_binary_type(std::string_view op, const c10::TypePtr& left,
                                const c10::TypePtr& right,
                                const std::optional<c10::IValue>& exponent);

// "<", ">", "<=", ">=", "==", "!=".
bool number_compare(std::string_view op, const c10::IValue& left, const c10::IValue& right);

// "-", "+", "~", "abs".
c10::IValue number_unary(std::string_view op, const c10::IValue&);
c10::TypePtr number_unary_type(std::string_view op, const c10::TypePtr&);  // none: no such operator

// Python's int(), float(), bool().
c10::IValue to_python_int(const c10::IValue&);
c10::IValue to_python_float(const c10::IValue&);
c10::IValue to_python_bool(const c10::IValue&);

}  // namespace distgrad
