// Holds a golden file: the truth of every case of one scenario, as the simulation found it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/array.h"
#include "model/dtype.h"

namespace distgrad::golden {

// Stands for the parts of a gradient that is too large for people to read.
struct TensorSummary {
  std::vector<Shape> shapes;  // one for each part
  std::string sha256;  // of all parts' elements as little-endian float64; empty where inexact
  double l1 = 0, l2 = 0, max = 0;
  std::vector<double> first;  // the first elements of all parts, in order
  double bound = 0;           // the largest bound of any element
};

// Holds the truth of one input. Local inputs have a part for each rank, others one full tensor.
struct GradientRecord {
  std::string input;
  std::string layout;  // as layout_text() spells it
  std::vector<Array> parts;
  std::vector<Array> bounds;             // absolute, for each element; shaped like the parts
  std::optional<TensorSummary> summary;  // where present, parts and bounds are empty
};

struct CaseRecord {
  std::string objective;  // as spelled() writes it
  int world_size = 1;
  DType dtype = DType::kFloat64;
  std::vector<double> losses;  // by rank
  std::vector<double> loss_bounds;
  std::string why;  // says why no gradients can be checked; empty where they can
  std::vector<GradientRecord> gradients;
};

struct GoldenFile {
  std::string scenario_sha256;
  std::vector<CaseRecord> cases;
};

inline bool same_case(const CaseRecord& a, const CaseRecord& b) {
  return a.objective == b.objective && a.world_size == b.world_size && a.dtype == b.dtype;
}

// Returns for example "objective=sum,world_size=2,dtype=float64".
std::string case_text(const CaseRecord&);

// Returns whether every bound is zero, so that all machines write the same bytes.
bool is_exact(const CaseRecord&);

// Returns the file's text, with one line for each row of a tensor and a newline at the end. The
// same file gives the same bytes on every machine.
std::string text_of(const GoldenFile&);

// Throws UserError, beginning with `where`, for text that is not a golden file of format 1.
GoldenFile parse_golden(std::string_view text, const std::string& where);

}  // namespace distgrad::golden
