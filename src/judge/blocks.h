// Describes a measured backward piece by piece: what each piece of each rank's operand got from
// each piece of each rank's cotangent, as one number if one suffices.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "judge/measurement.h"

namespace distgrad {

struct PieceOf {
  std::size_t rank = 0;  // of the world
  std::size_t piece = 0;
  bool operator==(const PieceOf&) const = default;
};

// Says what one piece of the cotangent contributes to one piece of x̄.
struct Block {
  bool is_zero = true;
  std::optional<double> of_copy;  // the contribution is this number times the piece of the
                                  // cotangent itself
  // The contribution is this number times the right backward's. If that has none here, it is this
  // number times what the right backward would make of this piece if it counted.
  std::optional<double> of_right;
};

struct Blocks {
  std::vector<PieceOf> to, from;
  std::vector<std::vector<Block>> at;  // [to][from]
  // Has, as [to][element of that piece], the factor by which the right backward multiplies the
  // cotangents that count. A list is empty if these factors differ by cotangent.
  std::vector<std::vector<double>> derivatives;

  // Returns true if each block is zero, or a number times a copy or times the right block.
  bool is_described() const;
};

// Describe the measured and the right backward. The right one's of_right is 1 where it is not zero.
Blocks blocks_of_measured(const Measurement&);
Blocks blocks_of_right(const Measurement&);

// Returns factors relative to the right backward, as [to][from] by world rank, or nothing if one
// number for each pair of ranks does not suffice.
std::optional<std::vector<std::vector<double>>> coefficients(const Blocks& measured,
                                                             const Blocks& right,
                                                             std::size_t world_size);

// Returns the nearest fraction with a small denominator, if it is within the error, else `number`.
double snapped(double number, double relative_error);

}  // namespace distgrad
