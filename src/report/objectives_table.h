// Writes the table that settles what a gradient is right for: what was observed beside the truth
// under every objective worth showing, by rank, marking the declared objective and those that the
// observation satisfies.
#pragma once

#include <string>
#include <vector>

#include "model/report.h"

namespace distgrad {

struct ObjectivesTableOptions {
  std::string declared;  // the declared objective, as spelt
  bool full = false;     // shows every rank and element
  std::size_t width = 100;
  bool color = false;  // shows observed values that the declared objective does not give in red
};

// Returns lines indented by two, each ended. Tensors of up to 8 elements are shown whole, larger
// ones by the elements furthest off; of more than 8 ranks those furthest off are shown. If nothing
// was observed (--simulate), it has the truths only.
std::string objectives_table(const GradientComparison&, const ObjectivesTableOptions&);

// Holds the same table before it is laid out.
struct ObjectivesTable {
  struct Row {
    std::string label;               // "observed", or an objective
    std::vector<std::string> cells;  // by column
    std::string note;                // "= observed: one loss, computed on every rank"
  };
  std::string title;                 // the input, and how it lies on the ranks
  std::vector<std::string> columns;  // "rank 0"
  std::vector<Row> rows;
  std::string remark;  // says that not all is shown; empty if all is
};
ObjectivesTable objectives_rows(const GradientComparison&, const ObjectivesTableOptions&);

}  // namespace distgrad
