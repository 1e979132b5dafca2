// Draws the values of a random input. They depend only on seed, name, rank and place, so they are
// the same on every machine. Source: docs/scenarios.md, "Random inputs".
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/program.h"

namespace distgrad {

class RandomValues {
 public:
  // A `rank` below 0 is for an input that is one tensor for all ranks. The shape in `spec` is
  // ignored.
  RandomValues(const RandomSpec& spec, const std::string& name, int rank);

  // Returns element i, counted in row-major order.
  double operator[](std::uint64_t i) const;

  // Writes the elements from `first` on. The bits are those of operator[], but it is faster.
  void fill(std::uint64_t first, std::span<double> out) const;

 private:
  std::uint64_t bits(std::uint64_t i) const;
  double uniform(std::uint64_t i) const;

  RandomSpec::Kind kind_;
  double low_;
  double high_;
  std::uint64_t start_;
};

}  // namespace distgrad
