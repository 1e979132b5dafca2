// How the gradients that the ranks hold of one input become what is compared with its truth, by
// layout and sync (scenario format, "Inputs"): each rank's own, joined as torch.chunk cuts, summed
// over the ranks, or a mixture by mesh axis.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

using GradientByRank = std::vector<std::optional<Array>>;  // absent: None

// A box of the full tensor, and the ranks that hold it.
struct Piece {
  Shape start;
  Shape extent;
  std::vector<int> ranks;  // ascending; their gradients of it are summed
};

// Ranks whose gradients make up one thing that must equal the truth by itself: one rank of a local
// or invariant input; all ranks of a replicated one; the ranks of one coordinate along the axes
// that are synchronised.
struct Part {
  std::vector<int> ranks;      // ascending
  std::vector<Piece> pieces;   // they tile the full tensor; ordered by their first rank
  std::optional<Array> value;  // joined and summed; absent where no rank has a gradient

  std::vector<int> missing;    // ranks without a gradient of a piece that has elements
  std::vector<int> misshapen;  // ranks whose gradient has not their piece's shape: then no value
  bool lacks_a_piece = false;  // no rank has a gradient of some piece: `value` is 0 there
  bool is_sum = false;         // added up here, in float64: has one rounding of its own

  // The first rank that holds this element of the full tensor.
  int holder_of(const std::vector<std::int64_t>& index) const;
};

// How an input lies along one mesh axis (or the world), with the ranks' coordinates.
struct PlacedAxis {
  Layout layout;
  int size = 1;
  std::vector<int> coordinate;  // by rank
  std::optional<Input::Sync> sync;
};

// In the order in which the layouts apply. A word for the whole world counts for each mesh axis,
// except a shard, which cuts over the world. Local inputs have one axis over the world.
std::vector<PlacedAxis> placed_axes(const Program&, const Input&);

// "local", "replicate", "shard:0", "dp=replicate,tp=shard:0".
std::string layout_text(const Input&);

// `full`: the shape of the input's full tensor; of local inputs not used, as their parts are the
// ranks and take any shape. An Array is shared, not copied, where one rank holds a part alone.
std::vector<Part> assemble(const Program&, const Input&, const Shape& full,
                           const GradientByRank& observed);

// What the ranks hold after the input's `sync`: for gradients that come without it.
GradientByRank synchronised(const Program&, const Input&, GradientByRank gradients);

// Each gradient divided by `divisor`; the arrays themselves where it is 1.
GradientByRank divided(const GradientByRank&, double divisor);

// The elements of the box, as an array of its extent.
Array box_of(const Array& full, const Shape& start, const Shape& extent);

}  // namespace distgrad
