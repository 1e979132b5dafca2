// The table that settles what a gradient is by: what was observed beside the truth under every
// objective worth showing, by rank, with the objective that was declared and the ones that the
// observation would satisfy.
#pragma once

#include <string>
#include <vector>

#include "model/report.h"

namespace distgrad {

struct ObjectivesTableOptions {
  std::string declared;  // the declared objective, as spelt
  bool full = false;     // every rank and element
  std::size_t width = 100;
  bool color = false;  // what was observed and is not what the declared objective gives is red
};

// Lines indented by two, each ended. Tensors of up to 8 elements are shown whole, of larger ones
// the elements furthest off; of more than 8 ranks those furthest off. Nothing observed
// (--simulate): the truths alone.
std::string objectives_table(const GradientComparison&, const ObjectivesTableOptions&);

// The same before it is laid out.
struct ObjectivesTable {
  struct Row {
    std::string label;               // "observed", or an objective
    std::vector<std::string> cells;  // by column
    std::string note;                // "= observed: one loss, computed on every rank"
  };
  std::string title;                 // the input, and how it lies on the ranks
  std::vector<std::string> columns;  // "rank 0"
  std::vector<Row> rows;
  std::string remark;  // that not all is shown; empty: it is
};
ObjectivesTable objectives_rows(const GradientComparison&, const ObjectivesTableOptions&);

}  // namespace distgrad
