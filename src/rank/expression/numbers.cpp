#include "rank/expression/numbers.h"

#include <cmath>
#include <limits>

namespace distgrad {
namespace {

using c10::IValue;

constexpr std::int64_t kExactInDouble = std::int64_t{1} << 53;

[[noreturn]] void overflow() { throw NumberError("the integer does not fit in 64 bits"); }
[[noreturn]] void zero_division() { throw NumberError("division by zero"); }

bool is_float(const IValue& value) { return value.isDouble(); }

std::int64_t as_int(const IValue& value) { return value.isBool() ? value.toBool() : value.toInt(); }

double as_double(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(as_int(value));
}

std::int64_t int_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1)
      if (__builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return result;
}

double float_power(double base, double exponent) {
  if (base == 0 && exponent < 0) throw NumberError("zero cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) &&
      exponent != std::floor(exponent))
    throw NumberError("a negative number to a fractional power is complex");
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    throw NumberError("the power is out of float64's range");
  return result;
}

// Floor division and modulo belong together: a == (a // b) * b + a % b, and the modulo has the
// divisor's sign.
struct Quotient {
  double floor;
  double modulo;
};

Quotient float_divmod(double a, double b) {
  if (b == 0) zero_division();
  double modulo = std::fmod(a, b);  // exact
  double quotient = (a - modulo) / b;
  if (modulo != 0) {
    if ((b < 0) != (modulo < 0)) {
      modulo += b;
      quotient -= 1;
    }
  } else {
    modulo = std::copysign(0.0, b);
  }
  double floor = std::copysign(0.0, a / b);
  if (quotient != 0) {
    floor = std::floor(quotient);
    if (quotient - floor > 0.5) floor += 1;
  }
  return {floor, modulo};
}

IValue int_floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) zero_division();
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1) overflow();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

IValue int_modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) zero_division();
  if (b == -1) return std::int64_t{0};
  const std::int64_t modulo = a % b;
  return modulo != 0 && (modulo < 0) != (b < 0) ? modulo + b : modulo;
}

double int_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) zero_division();
  // Beyond these Python rounds the exact quotient once; we would round three times.
  if (a > kExactInDouble || a < -kExactInDouble || b > kExactInDouble || b < -kExactInDouble)
    throw NumberError("integers above 2**53 are not divided here");
  return static_cast<double>(a) / static_cast<double>(b);
}

std::int64_t shift_left(std::int64_t a, std::int64_t b) {
  if (b < 0) throw NumberError("negative shift count");
  if (a == 0) return 0;
  if (b > 62) overflow();
  return __builtin_mul_overflow(a, std::int64_t{1} << b, &a) ? (overflow(), 0) : a;
}

std::int64_t shift_right(std::int64_t a, std::int64_t b) {
  if (b < 0) throw NumberError("negative shift count");
  return a >> std::min<std::int64_t>(b, 63);
}

IValue int_binary(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+")
    return __builtin_add_overflow(a, b, &result) ? (overflow(), IValue()) : IValue(result);
  if (op == "-")
    return __builtin_sub_overflow(a, b, &result) ? (overflow(), IValue()) : IValue(result);
  if (op == "*")
    return __builtin_mul_overflow(a, b, &result) ? (overflow(), IValue()) : IValue(result);
  if (op == "/") return int_divide(a, b);
  if (op == "//") return int_floor_divide(a, b);
  if (op == "%") return int_modulo(a, b);
  if (op == "**") return b >= 0 ? IValue(int_power(a, b)) : IValue(float_power(a, b));
  if (op == "<<") return shift_left(a, b);
  if (op == ">>") return shift_right(a, b);
  if (op == "&") return a & b;
  if (op == "|") return a | b;
  if (op == "^") return a ^ b;
  throw NumberError("unsupported operator " + std::string(op));
}

IValue float_binary(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return b == 0 ? (zero_division(), IValue()) : IValue(a / b);
  if (op == "//") return float_divmod(a, b).floor;
  if (op == "%") return float_divmod(a, b).modulo;
  if (op == "**") return float_power(a, b);
  throw NumberError("a float has no operator " + std::string(op));
}

bool is_bitwise(std::string_view op) { return op == "&" || op == "|" || op == "^"; }

template <typename T>
bool compare(std::string_view op, T a, T b) {
  if (op == "<") return a < b;
  if (op == ">") return a > b;
  if (op == "<=") return a <= b;
  if (op == ">=") return a >= b;
  if (op == "==") return a == b;
  return a != b;
}

}  // namespace

bool is_number(const c10::TypePtr& type) {
  const c10::TypeKind kind = type->kind();
  return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
         kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType;
}

IValue number_binary(std::string_view op, const IValue& left, const IValue& right) {
  if (is_float(left) || is_float(right)) return float_binary(op, as_double(left), as_double(right));
  IValue result = int_binary(op, as_int(left), as_int(right));
  if (is_bitwise(op) && left.isBool() && right.isBool()) return result.toInt() != 0;
  return result;
}

c10::TypePtr number_binary_type(std::string_view op, const c10::TypePtr& left,
                                const c10::TypePtr& right, const std::optional<IValue>& exponent) {
  const auto either = [&](c10::TypeKind kind) {
    return left->kind() == kind || right->kind() == kind;
  };
  const auto both = [&](c10::TypeKind kind) {
    return left->kind() == kind && right->kind() == kind;
  };
  if (op == "/") return c10::FloatType::get();
  if (is_bitwise(op) || op == "<<" || op == ">>") {
    if (either(c10::TypeKind::FloatType)) return nullptr;
    if (is_bitwise(op) && both(c10::TypeKind::BoolType)) return c10::BoolType::get();
    if (either(c10::TypeKind::NumberType)) return c10::NumberType::get();
    return c10::IntType::get();
  }
  if (op == "@") return nullptr;
  if (either(c10::TypeKind::FloatType)) return c10::FloatType::get();
  if (either(c10::TypeKind::NumberType)) return c10::NumberType::get();
  if (op != "**") return c10::IntType::get();
  if (right->kind() == c10::TypeKind::BoolType) return c10::IntType::get();
  if (!exponent || !exponent->isInt()) return c10::NumberType::get();  // a float where negative
  return exponent->toInt() >= 0 ? c10::TypePtr(c10::IntType::get())
                                : c10::TypePtr(c10::FloatType::get());
}

bool number_compare(std::string_view op, const IValue& left, const IValue& right) {
  // Python compares an int with a float exactly, and long double holds both.
  static_assert(std::numeric_limits<long double>::digits >= 63);
  if (is_float(left) != is_float(right)) {
    const auto exact = [](const IValue& v) {
      return v.isDouble() ? static_cast<long double>(v.toDouble())
                          : static_cast<long double>(as_int(v));
    };
    return compare(op, exact(left), exact(right));
  }
  if (is_float(left)) return compare(op, left.toDouble(), right.toDouble());
  return compare(op, as_int(left), as_int(right));
}

IValue number_unary(std::string_view op, const IValue& value) {
  if (op == "~")
    return is_float(value) ? throw NumberError("a float has no operator ~")
                           : IValue(~as_int(value));
  if (op == "+") return is_float(value) ? value : IValue(as_int(value));
  if (is_float(value)) return op == "-" ? -value.toDouble() : std::fabs(value.toDouble());
  const std::int64_t integer = as_int(value);
  if (integer == std::numeric_limits<std::int64_t>::min()) overflow();
  return op == "-" || integer < 0 ? -integer : integer;
}

c10::TypePtr number_unary_type(std::string_view op, const c10::TypePtr& type) {
  if (op == "~" && type->kind() == c10::TypeKind::FloatType) return nullptr;
  if (type->kind() == c10::TypeKind::BoolType) return c10::IntType::get();
  return type;
}

IValue to_python_int(const IValue& value) {
  if (!is_float(value)) return as_int(value);
  const double number = std::trunc(value.toDouble());
  if (!std::isfinite(number)) throw NumberError("cannot convert inf or nan to an integer");
  if (number < -0x1p63 || number >= 0x1p63) overflow();
  return static_cast<std::int64_t>(number);
}

IValue to_python_float(const IValue& value) { return as_double(value); }

IValue to_python_bool(const IValue& value) {
  return is_float(value) ? value.toDouble() != 0 : as_int(value) != 0;
}

}  // namespace distgrad
