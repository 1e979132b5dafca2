// Products whose factors the run may take in any order and association: a product over ranks and
// its adjoint, torch.prod. docs/tolerance.md, "Products".
#pragma once

#include <cstdint>

#include "tolerance/bounded_value.h"

namespace distgrad::tolerance {

// What is kept of the factors f_i, with bounds e_i, of one product.
struct ProductFigures {
  double relative_error =
      0;  // bound of what the e_i and the relative roundings do: all but underflow
  double largest =
      1;  // product of max(1, |f_i| + e_i): bounds what any part of the product is multiplied by
  double smallest = 1;  // product of min(1, |f_i| - e_i): no part of the product is nearer to 0
  std::int32_t lowest_bit =
      0;  // every part is a multiple of 2^lowest_bit; says something where all factors are exact
  std::int32_t factors = 0;  // 0: none kept
  std::int32_t exact_products =
      0;  // multiplications not charged so far, which another order may round

  // An exact 0 is a factor, and every order ends with 0.
  bool zero() const { return smallest == kInfinity; }
};

ProductFigures factor(BoundedValue f);
// The product of two products, whose values are a and b.
ProductFigures multiplied(const ProductFigures& x, double a, const ProductFigures& y, double b,
                          const Arithmetic& arithmetic);
// Bound of |run - value| over every order; infinite where one may overflow. 0: every order gives
// the same bits.
double product_error(const ProductFigures& product, const Arithmetic& arithmetic);

}  // namespace distgrad::tolerance
