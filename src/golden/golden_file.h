// What a golden file says: the truth of every case of one scenario, as the simulation found it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/array.h"
#include "model/dtype.h"

namespace distgrad::golden {

// Stands for the tensors of a gradient that is too large to be read.
struct TensorSummary {
  std::vector<Shape> shapes;  // of each part
  std::string sha256;  // of the elements of all parts, float64, little endian; empty: not exact
  double l1 = 0, l2 = 0, max = 0;
  std::vector<double> first;  // elements, of all parts in their order
  double bound = 0;           // the largest of any element
};

// The truth of one input. Parts are the ranks for local inputs, else one full tensor.
struct GradientRecord {
  std::string input;
  std::string layout;  // as layout_text() has it
  std::vector<Array> parts;
  std::vector<Array> bounds;             // absolute, of each element; shaped as the parts
  std::optional<TensorSummary> summary;  // then parts and bounds are empty
};

struct CaseRecord {
  std::string objective;  // as spelled() has it
  int world_size = 1;
  DType dtype = DType::kFloat64;
  std::vector<double> losses;  // by rank
  std::vector<double> loss_bounds;
  std::string why;  // not empty: why there are no gradients to hold anybody to
  std::vector<GradientRecord> gradients;
};

struct GoldenFile {
  std::string scenario_sha256;
  std::vector<CaseRecord> cases;
};

inline bool same_case(const CaseRecord& a, const CaseRecord& b) {
  return a.objective == b.objective && a.world_size == b.world_size && a.dtype == b.dtype;
}

// "objective=sum,world_size=2,dtype=float64"
std::string case_text(const CaseRecord&);

// Every bound is zero: the bytes are the same wherever it is written.
bool is_exact(const CaseRecord&);

// The text of the file: a tensor's row a line; ends with a newline. The same file gives the same
// bytes everywhere.
std::string text_of(const GoldenFile&);

// Throws UserError, beginning with `where`, for what is no golden file of format 1.
GoldenFile parse_golden(std::string_view text, const std::string& where);

}  // namespace distgrad::golden
