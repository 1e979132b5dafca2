// Holds the terms of a formula: which pieces of which cotangents each piece of an operand gets, in
// one group if all groups do the same, else in the world.
#pragma once

#include <vector>

#include "judge/blocks.h"

namespace distgrad {

struct FormulaTerm {
  int rank = 0, piece = 0;  // of the cotangent
  double number = 0;
  bool operator==(const FormulaTerm&) const = default;
};

struct FormulaRow {
  int rank = 0, piece = 0;  // of the operand
  std::vector<FormulaTerm> terms;
};

struct FormulaView {
  int size = 0;              // ranks
  bool is_of_group = false;  // ranks count within the group
  bool cuts_operand = false, cuts_output = false;
  bool is_of_derivative = false;  // the numbers multiply the right contribution, not a copy
  bool sums_pieces = false;       // each term stands for all pieces of its cotangent
  std::vector<FormulaRow> rows;
};

// Views the measured or the right blocks. With `counts_in_groups` ranks count within the group if
// all groups do the same.
FormulaView view_of(const Measurement&, const Blocks&, bool counts_in_groups);

}  // namespace distgrad
