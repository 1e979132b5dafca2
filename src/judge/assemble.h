// Turns the gradients that the ranks hold of one input into what is compared with its truth. Layout
// and sync decide how (scenario format, "Inputs"): each rank's own gradient, the ranks' joined as
// torch.chunk cuts, their sum, or a mixture by mesh axis.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

using GradientByRank = std::vector<std::optional<Array>>;  // absent: None

// Describes a box of the full tensor, with the ranks that hold it.
struct Piece {
  Shape start;
  Shape extent;
  std::vector<int> ranks;  // ascending; their gradients of the box are summed
};

// Groups the ranks whose gradients make up one tensor that must equal the truth by itself: one rank
// of a local or invariant input, all ranks of a replicated one, or the ranks of one coordinate
// along the synchronised axes.
struct Part {
  std::vector<int> ranks;      // ascending
  std::vector<Piece> pieces;   // they tile the full tensor; ordered by their first rank
  std::optional<Array> value;  // joined and summed; absent if no rank has a gradient

  std::vector<int> missing;    // ranks without a gradient of a piece that has elements
  std::vector<int> misshapen;  // ranks whose gradient lacks their piece's shape; if any, there is
                               // no value
  bool lacks_a_piece = false;  // no rank has a gradient of some piece, and `value` is 0 there
  bool is_sum = false;         // added up here in float64, which rounds once

  // Returns the first rank that holds this element of the full tensor.
  int holder_of(const std::vector<std::int64_t>& index) const;
};

// Says how an input lies along one mesh axis (or the world), with the ranks' coordinates.
struct PlacedAxis {
  Layout layout;
  int size = 1;
  std::vector<int> coordinate;  // by rank
  std::optional<Input::Sync> sync;
};

// Returns the axes in the order in which the layouts apply. A layout for the whole world counts for
// each mesh axis, except a shard, which cuts the world. Local inputs have one axis, the world.
std::vector<PlacedAxis> placed_axes(const Program&, const Input&);

// Returns "local", "replicate", "shard:0" or "dp=replicate,tp=shard:0".
std::string layout_text(const Input&);

// Assembles the parts of one input. `full` is the shape of its full tensor; local inputs ignore it,
// since each rank is a part of any shape. A part of one rank shares its Array.
std::vector<Part> assemble(const Program&, const Input&, const Shape& full,
                           const GradientByRank& observed);

// Returns what the ranks hold after the input's `sync`, for gradients from before it.
GradientByRank synchronised(const Program&, const Input&, GradientByRank gradients);

// Divides each gradient by `divisor`. Returns the arrays themselves if it is 1.
GradientByRank divided(const GradientByRank&, double divisor);

// Returns the elements of the box, as an array of shape `extent`.
Array box_of(const Array& full, const Shape& start, const Shape& extent);

}  // namespace distgrad
