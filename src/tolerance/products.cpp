#include "tolerance/products.h"

#include <algorithm>
#include <cmath>

namespace distgrad::tolerance {
namespace {

// Returns true if the product is exact and has no more bits than the stored type. product_error
// checks its range.
bool multiplies_exactly(double a, double b, const Format& stored) {
  const double product = a * b;
  return std::isfinite(product) && std::fabs(product) > kResidualUnderflow &&
         std::fma(a, b, -product) == 0 && significant_bits(product) <= stored.significand_bits;
}

// Returns half a unit of the subnormals, in the stored type, in what a kernel computes in before,
// and in the simulation.
double underflow_error(const Arithmetic& arithmetic) {
  double error = arithmetic.stored.smallest / 2;
  if (arithmetic.narrows()) error += arithmetic.inner.smallest / 2;
  if (arithmetic.simulated >= arithmetic.stored.unit_roundoff)
    error += arithmetic.stored.smallest / 2;
  return error;
}

}  // namespace

ProductFigures factor(BoundedValue f) {
  const double size = std::fabs(f.value);
  ProductFigures figures;
  figures.relative_error = f.error;
  figures.largest = std::max(1.0, size + f.error);
  figures.smallest =
      f.exact() && f.value == 0 ? kInfinity : std::min(1.0, std::max(0.0, size - f.error));
  figures.lowest_bit = std::min(0, lowest_bit(f.value));
  figures.factors = 1;
  return figures;
}

ProductFigures multiplied(const ProductFigures& x, double a, const ProductFigures& y, double b,
                          const Arithmetic& arithmetic) {
  ProductFigures product;
  product.largest = x.largest * y.largest;
  product.factors = x.factors + y.factors;
  product.lowest_bit = x.lowest_bit + y.lowest_bit;
  if (x.zero() || y.zero()) {
    product.smallest = kInfinity;
    return product;
  }
  product.smallest = x.smallest * y.smallest;
  const int exact_products = x.exact_products + y.exact_products;
  if (x.relative_error == 0 && y.relative_error == 0 &&
      multiplies_exactly(a, b, arithmetic.stored)) {
    product.exact_products = exact_products + (is_power_of_two(a) || is_power_of_two(b) ? 0 : 1);
    return product;
  }
  const double propagated = std::fabs(a) * y.relative_error + std::fabs(b) * x.relative_error +
                            x.relative_error * y.relative_error;
  product.relative_error =
      propagated + arithmetic.stored_gamma(exact_products + 1.0) * (std::fabs(a * b) + propagated);
  return product;
}

double product_error(const ProductFigures& product, const Arithmetic& arithmetic) {
  const Format& stored = arithmetic.stored;
  if (!(product.largest <= stored.largest) || !(product.relative_error < kInfinity))
    return kInfinity;
  const bool exact = product.relative_error == 0 && product.lowest_bit >= stored.min_exponent;
  if (product.factors < 2 || product.zero() || exact ||
      product.smallest >= 2 * stored.smallest_normal)
    return product.relative_error;
  const double multiplications = product.factors - 1;
  return product.relative_error + multiplications * underflow_error(arithmetic) * product.largest *
                                      (1 + arithmetic.stored_gamma(multiplications));
}

}  // namespace distgrad::tolerance
