// Traces values and cotangents through a program, rank by rank, cut to what a picture shows: it is
// bounded however large the tensors are.
#pragma once

#include <string>
#include <vector>

#include "model/dtype.h"
#include "report/explain.h"

namespace distgrad {

struct TraceCell {
  std::string truth;     // its first elements, and its shape if that is not all; empty: unknown
  std::string observed;  // the same of the ranks'; empty: equals the truth
  std::string furthest;  // "10 in place of 20 at [0, 3]": where the two are furthest apart
};

struct TraceRow {
  ExplainedValue::Kind kind = ExplainedValue::Kind::kStep;
  std::string title;
  std::string mark;                   // as in ExplainedValue
  std::vector<TraceCell> values;      // by rank shown; empty: unknown
  std::vector<TraceCell> cotangents;  // of inputs: gradients
};

struct ValueTrace {
  std::vector<int> ranks;  // the ranks shown
  int world_size = 0;
  std::vector<TraceRow> rows;  // in the order of the program
  std::vector<std::string> remarks;
  std::string parting;
  std::string measured;
  std::string how_known;  // as in Explanation; empty if no ranks' cotangents are shown
};

// `dtype` is what the ranks compute in; it decides how near a value counts as the same. Shows up to
// 16 ranks, those that differ first.
ValueTrace trace_of(const Explanation&, DType);

}  // namespace distgrad
