// Bounds products whose factors the run may take in any order and association: a product over ranks
// and its adjoint, torch.prod. docs/tolerance.md, "Products".
#pragma once

#include <cstdint>

#include "tolerance/bounded_value.h"

namespace distgrad::tolerance {

// Keeps figures of the factors f_i, with bounds e_i, of one product.
struct ProductFigures {
  // Bounds what the e_i and the relative roundings do: everything but underflow.
  double relative_error = 0;
  // Holds the product of max(1, |f_i| + e_i), which bounds what any part of the product is
  // multiplied by.
  double largest = 1;
  double smallest = 1;  // product of min(1, |f_i| - e_i): no part of the product is nearer to 0
  // Every part is a multiple of 2^lowest_bit. This is useful only if all factors are exact.
  std::int32_t lowest_bit = 0;
  std::int32_t factors = 0;  // 0: none kept
  // Counts multiplications not charged so far, which another order may round.
  std::int32_t exact_products = 0;

  // True if an exact 0 is a factor, so that every order ends with 0.
  bool zero() const { return smallest == kInfinity; }
};

ProductFigures factor(BoundedValue f);
// Multiplies two products, whose values are a and b.
ProductFigures multiplied(const ProductFigures& x, double a, const ProductFigures& y, double b,
                          const Arithmetic& arithmetic);
// Bounds |run - value| over every order; infinite if one may overflow. 0 means that every order
// gives the same bits.
double product_error(const ProductFigures& product, const Arithmetic& arithmetic);

}  // namespace distgrad::tolerance
