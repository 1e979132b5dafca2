// Holds what a training script wrote: the gradients of each rank, by parameter, with what is known
// of how a rank's piece lies in the whole. These are plain values; the elements stay in the mapped
// files.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/array.h"
#include "model/dtype.h"

namespace distgrad::dumps {

// Refers to a tensor's elements, row-major and little-endian, perhaps unaligned; `keeper` keeps
// them alive.
struct DumpTensor {
  DType dtype = DType::kFloat64;
  Shape shape;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> keeper;

  std::int64_t size() const { return element_count(shape); }
};

// Reads elements [begin, begin + count) as float64, which represents each exactly.
void read_elements(const DumpTensor&, std::int64_t begin, std::int64_t count, double* out);

struct DumpAxis {
  std::string name;
  int size = 1;
};

// Describes a DeviceMesh, with its ranks in row-major order of the axes.
struct DumpMesh {
  std::vector<DumpAxis> axes;
  std::vector<int> ranks;
};

// Describes a DTensor's placement along one axis. A `split_factor` over 1 is _StridedShard's: axes
// to the right, with that many ranks together, have cut the dimension before.
struct DumpPlacement {
  enum class Kind { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  int dim = 0;
  std::int64_t split_factor = 1;
  std::string op;  // of kPartial: "sum", "avg", ...
};

struct DumpLayout {
  Shape full_shape;
  std::size_t mesh = 0;                   // of the rank's meshes
  std::vector<DumpPlacement> placements;  // one an axis
};

struct DumpGradient {
  std::optional<DumpTensor> tensor;  // absent: None
  std::optional<DumpLayout> layout;  // absent: no DTensor, or written by another script
  std::optional<int> position;       // in the model; absent: the file does not say
  bool elsewhere = false;            // a DTensor on a mesh without this rank
};

// Describes a process group with the rank: its name, perhaps empty, and its ranks.
struct DumpGroup {
  std::string name;
  std::vector<int> ranks;

  auto operator<=>(const DumpGroup&) const = default;
};

inline constexpr int kWhole = -1;  // stands for one file that is not one rank's

struct RankDump {
  int rank = kWhole;
  std::string file;
  std::optional<int> world_size;
  bool lists_all = false;  // unnamed parameters are not on this rank (pipelines), rather than None
  std::vector<DumpMesh> meshes;
  std::vector<DumpGroup> groups;
  std::vector<std::pair<std::string, int>> counts;  // how often something happened: backward passes
  // Identifies the gradients before any reduction: ranks that computed the same have the same.
  // Empty means unknown.
  std::string local_digest;
  std::map<std::string, DumpGradient> gradients;  // by plain_name
  std::map<std::string, std::string> shown;       // plain_name -> the user's name
};

// Groups process groups that are alike and have each rank at most once.
struct DumpGroups {
  std::string name;  // may be empty
  std::vector<std::vector<int>> ranks;
};

// Has the ranks in ascending order, or the one entry kWhole.
struct Dump {
  std::string path;
  std::vector<RankDump> ranks;

  int world_size() const;  // as the files say, else the number of files
  std::vector<int> absent_ranks() const;
  // Returns a mesh of the world, from the rank that knows the one with the most axes, or null.
  const DumpMesh* mesh() const;
  // Removes the prefix from names that begin with it, unless another parameter has the shorter
  // name.
  void strip_prefix(const std::string& prefix);
  // Returns all groups but the world's, in the order in which they were made. Groups of one name
  // are together. Of those without a name, groups of one size that do not overlap are: pairs of
  // neighbours, then pairs of every other rank.
  std::vector<DumpGroups> groups() const;
};

}  // namespace distgrad::dumps
