// Says which part of a whole tensor a rank's piece is.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dumps/dump.h"

namespace distgrad::dumps {

// Describes the part of a tensor of shape `full` that starts at `offset`. Parts of a flattened
// tensor have one dimension.
struct Box {
  Shape full, offset, extent;

  std::int64_t size() const { return element_count(extent); }
  bool operator==(const Box&) const = default;
};

Box whole_box(const Shape& full);

// Returns the rank's part by its placements, cut as DTensor does: chunks of ceil(n / size), the
// last ones shorter or empty. If several axes cut one dimension, the left one cuts first, but
// _StridedShard cuts after the axes that its factor names. Returns nothing if no order of the axes
// fits the factor. The rank must be on the mesh.
std::optional<Box> placed_box(const DumpLayout&, const DumpMesh&, int rank);

// Returns the position on each axis. The rank must be on the mesh.
std::vector<int> coordinate_of(const DumpMesh&, int rank);

// Has a part i for shape i.
struct Arrangement {
  std::vector<Box> boxes;
  std::string text;  // "pieces of dimension 0, in the order of the ranks"; empty: every rank holds
                     // the whole
  // Describe pieces cut in several dimensions: "dimension 0 in 2, dimension 1 in 2", and the order
  // of the axes that was tried, "dimension 1, dimension 0".
  std::string grid = {}, order = {};
};

// Returns how pieces of these shapes, in the order of the ranks, may make up `full` if nothing says
// so; a rank without a piece has no shape. They may be copies of the whole; pieces that join along
// one dimension, once or several times over; equal pieces of several dimensions, likewise; or
// pieces of the flattened tensor (FSDP1), perhaps padded, so that a rank's tensor may be longer
// than its box. Several may fit, or none. `are_flat` says that other parameters of the dump are
// pieces of flattened tensors, so that a rank without one may hold a piece of no elements.
std::vector<Arrangement> possible_arrangements(std::span<const std::optional<Shape>> shapes,
                                               const Shape& full, bool are_flat = false);

// Finds where the elements of a box, in row-major order, lie in the tensor.
class BoxRuns {
 public:
  explicit BoxRuns(Box box);

  struct Run {
    std::int64_t start;   // in the tensor
    std::int64_t length;  // elements that are adjacent from there on, in the box
  };
  Run at(std::int64_t element) const;
  std::int64_t size() const { return size_; }

 private:
  Box box_;
  std::int64_t size_;
  std::size_t outer_dims_ = 0;  // dimensions that a run does not span
  std::int64_t run_ = 1;
};

// Reads a part of a tensor. The box's `full` is the tensor's shape, or that of the flattened
// tensor.
class BoxReader {
 public:
  BoxReader(DumpTensor tensor, Box box) : tensor_(std::move(tensor)), runs_(std::move(box)) {}
  explicit BoxReader(const DumpTensor& whole) : BoxReader(whole, whole_box(whole.shape)) {}

  std::int64_t size() const { return runs_.size(); }
  void read(std::int64_t begin, std::int64_t count, double* out) const;

 private:
  DumpTensor tensor_;
  BoxRuns runs_;
};

}  // namespace distgrad::dumps
