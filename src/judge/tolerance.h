// Gives the bound of each element under the scenario's tolerance.
#pragma once

#include <cmath>
#include <optional>

#include "model/array.h"
#include "model/scenario.h"

namespace distgrad {

// Bounds one tensor. It holds pointers into the arrays given, which must outlive it.
class ElementBound {
 public:
  // `derived` has bounds by element, or is null if the simulation has none (then 0). `summed` says
  // that the observed values were added or divided here in float64, which costs one more rounding
  // if the case is not exact.
  ElementBound(const Tolerance& tolerance, const Array& truth, const Array* derived, bool summed)
      : kind_(tolerance.kind),
        rtol_(tolerance.rtol),
        atol_(tolerance.atol),
        truth_(truth.values().data()),
        derived_(derived ? derived->values().data() : nullptr),
        own_rounding_(summed ? 0x1p-52 : 0) {}

  // Returns true if every element's bound is 0: there are no derived bounds, or they do not count.
  bool is_zero() const {
    return kind_ == Tolerance::Kind::kEqual ||
           (kind_ == Tolerance::Kind::kDerived && derived_ == nullptr);
  }

  double operator()(std::size_t i) const {
    if (kind_ == Tolerance::Kind::kEqual) return 0;
    if (kind_ == Tolerance::Kind::kExplicit) return atol_ + rtol_ * std::abs(truth_[i]);
    const double bound = derived_ ? derived_[i] : 0;
    return bound == 0 ? 0 : bound + own_rounding_ * std::abs(truth_[i]);
  }

 private:
  Tolerance::Kind kind_;
  double rtol_, atol_;
  const double* truth_;
  const double* derived_;
  double own_rounding_;
};

}  // namespace distgrad
