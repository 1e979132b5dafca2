// The way of values and cotangents through a program, rank by rank, cut to what a picture shows:
// bounded however large the tensors are.
#pragma once

#include <string>
#include <vector>

#include "model/dtype.h"
#include "report/explain.h"

namespace distgrad {

struct TraceCell {
  std::string truth;     // its first elements, and its shape where they are not all; empty: unknown
  std::string observed;  // the same of the ranks'; empty: it is the truth
  std::string furthest;  // "10 in place of 20 at [0, 3]": where the two are furthest apart
};

struct TraceRow {
  ExplainedValue::Kind kind = ExplainedValue::Kind::kStep;
  std::string title;
  std::string mark;                   // as ExplainedValue has it
  std::vector<TraceCell> values;      // by rank shown; empty: unknown
  std::vector<TraceCell> cotangents;  // of inputs: gradients
};

struct ValueTrace {
  std::vector<int> ranks;  // those shown
  int world_size = 0;
  std::vector<TraceRow> rows;  // in the order of the program
  std::vector<std::string> remarks;
  std::string parting;
  std::string measured;
  std::string how_known;  // as Explanation has it; empty where no ranks' cotangents are shown
};

// `dtype`: what the ranks compute in, which says how near a value counts as the same. Shows up to
// 16 ranks, those that differ before others.
ValueTrace trace_of(const Explanation&, DType);

}  // namespace distgrad
