// One parameter, as the reference has it and as the observed dump's ranks hold it: every piece
// beside what it should be.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dumps/differences.h"
#include "dumps/dump.h"
#include "dumps/holders.h"

namespace distgrad::dumps {

// The truth of one parameter.
struct Reference {
  enum class Kind {
    kMissing,  // no rank has a gradient
    kFull,     // one tensor, whole
    kByRank,   // every rank its own: they are not copies of each other, and nothing says that they
               // are pieces
    kUnclear,  // it cannot be told what the gradient is; `why`
  };
  Kind kind = Kind::kMissing;
  DumpTensor full;                    // perhaps joined in float64, hence:
  DType dtype = DType::kFloat64;      // the coarsest of what the files hold
  std::map<int, DumpTensor> by_rank;  // ranks with None are left out
  std::string why;
};

// Joins what the ranks hold: pieces by their placements, shares of Partial summed, copies compared.
Reference reference_of(Holders&, const std::string& name, const Tolerance&);

// What one rank holds, or several whose shares (Partial) are only together a gradient.
struct Holding {
  std::vector<int> ranks;          // empty: the dump is one whole file
  std::vector<int> lacking;        // of them, those whose share of the sum is missing
  std::optional<Stream> observed;  // absent: no gradient
  Stream expected;
  Box box;  // of the whole tensor

  std::int64_t size() const { return box.size(); }
};

// Ranks that may be meant to be reduced together: those that differ in these axes of the mesh
// alone, those of one process group, or all that hold the parameter.
struct AxisGroups {
  enum class Kind { kAxis, kProcessGroups, kAll };
  Kind kind = Kind::kAxis;
  std::string name;  // "tp", "dp and tp", a process group's own name; "the ranks" of kAll
  int size = 1;
  std::vector<std::vector<std::size_t>> groups;  // of holdings
};

struct Parameter {
  std::string name;
  Shape shape;
  DType dtype = DType::kFloat64;  // the coarser of both sides
  bool missing_reference = false;
  bool by_rank = false;  // every rank is compared with the reference's same rank
  std::vector<Holding> holdings;
  std::vector<AxisGroups> axes;  // single axes first, then several together, then all ranks
  std::vector<std::pair<std::string, std::string>> placements;  // axis, "Shard(0)"
  std::string arrangement;     // how pieces were joined where nothing said so
  std::string unclear;         // why it cannot be compared; then there are no holdings
  std::int64_t uncovered = 0;  // elements that are on no rank, and not zero in the reference
  std::vector<std::pair<std::vector<int>, Shape>>
      wrong_shapes;  // ranks whose shape does not fit; no holdings
};

// The observed dump's parameter beside its reference. Several: possible arrangements of pieces, of
// which the values decide. `reduction`: of tensors without placements, as "mean", where the user
// says so; else empty.
std::vector<Parameter> parameters_of(Holders& observed, const std::string& name, const Reference&,
                                     const std::string& reduction);

// All of a tensor.
Stream whole_stream(const DumpTensor&);

}  // namespace distgrad::dumps
