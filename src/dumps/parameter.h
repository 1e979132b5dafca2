// Puts one parameter's pieces, as the observed dump's ranks hold them, beside what they should be
// by the reference.
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

// Holds the truth of one parameter.
struct Reference {
  enum class Kind {
    kMissing,  // no rank has a gradient
    kFull,     // one tensor, whole
    kByRank,   // every rank has its own: they are no copies, and nothing says that they are pieces
    kUnclear,  // the gradient cannot be determined; see `why`
  };
  Kind kind = Kind::kMissing;
  DumpTensor full;                    // may be joined in float64, hence:
  DType dtype = DType::kFloat64;      // the coarsest dtype in the files
  std::map<int, DumpTensor> by_rank;  // ranks with None are left out
  std::string why;
};

// Joins what the ranks hold: pieces by their placements, shares of Partial by a sum. Compares
// copies.
Reference reference_of(Holders&, const std::string& name, const Tolerance&);

// Holds one rank's part, or that of several whose shares (Partial) only together are a gradient.
struct Holding {
  std::vector<int> ranks;          // empty: the dump is one whole file
  std::vector<int> lacking;        // those of `ranks` whose share of the sum is missing
  std::optional<Stream> observed;  // absent: no gradient
  Stream expected;
  Box box;  // of the whole tensor

  std::int64_t size() const { return box.size(); }
};

// Groups ranks that may be meant to be reduced together: those that differ only in these axes of
// the mesh, those of one process group, or all that hold the parameter.
struct AxisGroups {
  enum class Kind { kAxis, kProcessGroups, kAll };
  Kind kind = Kind::kAxis;
  std::string name;  // "tp", "dp and tp", a process group's own name; "the ranks" for kAll
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
  std::string arrangement;     // how pieces were joined if nothing said so
  std::string grid, order;     // as Arrangement has them; the former with the ranks that hold it
  std::string unclear;         // why it cannot be compared; then there are no holdings
  std::int64_t uncovered = 0;  // elements that no rank has and that are not zero in the reference
  // Lists ranks whose shape does not fit; then there are no holdings.
  std::vector<std::pair<std::vector<int>, Shape>> wrong_shapes;
};

// Returns the observed dump's parameter beside its reference. Several are possible arrangements of
// pieces, among which the values decide. `reduction` is the user's, such as "mean", for tensors
// without placements; else empty.
std::vector<Parameter> parameters_of(Holders& observed, const std::string& name, const Reference&,
                                     const std::string& reduction);

// Streams all of a tensor.
Stream whole_stream(const DumpTensor&);

}  // namespace distgrad::dumps
