// Maps the error of one input's gradient, rank by element, cut to what a picture shows. For large
// tensors a cell stands for a block of elements and has the worst one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/report.h"

namespace distgrad {

struct HeatCell {
  std::int64_t element = 0;  // row-major
  double observed = 0, truth = 0;
  double error = 0;  // |observed - truth|; infinite if only one is a number
  double bound = 0;  // what rounding may make of it; NaN: unknown, but the error is within it
  bool is_off = false;
};

struct HeatRow {
  std::string label;    // "rank 0", "summed over the ranks"
  std::string lacking;  // why there are no cells: "no gradient (None)", another shape; else empty
  Shape shape;
  std::int64_t block = 1;       // elements that a cell stands for; the last may have fewer
  std::vector<HeatCell> cells;  // in the order of the elements
};

struct HeatMap {
  std::string input;
  std::string layout;
  bool is_equal = true;
  double largest_truth = 0;  // magnitude, of what is finite
  std::size_t all_rows = 0;  // how many there are; the rows shown are the furthest off
  std::vector<HeatRow> rows;
  std::vector<int> differing_ranks;  // if one row stands for all
};

// Returns at most `cells` cells in about 64 rows, and no rows if nothing was observed.
HeatMap heat_map(const GradientComparison&, std::size_t cells);

}  // namespace distgrad
