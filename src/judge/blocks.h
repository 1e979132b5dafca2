// A measured backward in terms of pieces: what each piece of each rank's operand got from each
// piece of each rank's cotangent, as one number where one does.
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

// What one piece of the cotangent contributes to one piece of x̄.
struct Block {
  bool is_zero = true;
  std::optional<double> of_copy;  // it is this number times the piece of the cotangent itself
  // It is this number times what the right backward has there; or, where that has nothing, times
  // what it would make of this piece if it were the one that is due.
  std::optional<double> of_right;
};

struct Blocks {
  std::vector<PieceOf> to, from;
  std::vector<std::vector<Block>> at;  // [to][from]
  // [to][element of that piece]: by what the right backward multiplies the cotangents due; empty
  // where it is not one number for each.
  std::vector<std::vector<double>> derivatives;

  // Every block that is not zero is a number times a copy, or times what is right.
  bool is_described() const;
};

// Of what was measured, and of what is right (whose of_right is 1 where it is not zero).
Blocks blocks_of_measured(const Measurement&);
Blocks blocks_of_right(const Measurement&);

// [to][from], by rank of the world, relative to what is right; nothing where one number for each
// pair of ranks does not do.
std::optional<std::vector<std::vector<double>>> coefficients(const Blocks& measured,
                                                             const Blocks& right,
                                                             std::size_t world_size);

// The nearest fraction with a small denominator where the number is one, within the error.
double snapped(double number, double relative_error);

}  // namespace distgrad
