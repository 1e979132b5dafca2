// The values of a random input: by seed, name, rank and place alone, the same on every machine.
// Source: docs/scenarios.md, "Random inputs".
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/program.h"

namespace distgrad {

class RandomValues {
 public:
  // `rank` < 0: of an input that is one tensor and not a rank's. The shape of `spec` is not looked
  // at.
  RandomValues(const RandomSpec& spec, const std::string& name, int rank);

  // Element i, counted in row-major order.
  double operator[](std::uint64_t i) const;

  // The elements from `first` on, the same bits, faster.
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
