#include "judge/pieces.h"

#include <numeric>

namespace distgrad {
namespace {

using Sizes = std::vector<std::int64_t>;

Pieces whole(const Shape& shape) {
  Elements all(static_cast<std::size_t>(element_count(shape)));
  std::iota(all.begin(), all.end(), std::size_t{0});
  return {std::move(all)};
}

// Cuts along a dim into pieces of these sizes, or returns the whole if they do not add up to it.
Pieces cut(const Shape& shape, std::size_t dim, const Sizes& sizes) {
  if (dim >= shape.size()) return whole(shape);
  const std::int64_t along = shape[dim];
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != along) return whole(shape);
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  Pieces pieces(sizes.size());
  const std::int64_t total = element_count(shape);
  for (std::int64_t e = 0; e < total; ++e) {
    const std::int64_t place = e / inner % along;
    std::size_t piece = 0;
    for (std::int64_t end = sizes[0]; place >= end; end += sizes[++piece]) {
    }
    pieces[piece].push_back(static_cast<std::size_t>(e));
  }
  return pieces;
}

std::size_t dim_of(const CollectiveCall& call, const Shape& shape) {
  const int dim = call.dim.value_or(0);
  return static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim);
}

// Cuts one group's call, as one of its members made it.
class Cutter {
 public:
  Cutter(const CallOnRanks& seen, const std::vector<int>& ranks, std::size_t place)
      : seen_(seen), call_(seen.call()), ranks_(ranks), place_(place) {}

  Pieces operand() const {
    const Shape& shape = own();
    switch (traits(call_.kind).shape) {
      case ResultShape::kChunk:
        return cut(shape, dim_of(call_, shape),
                   sizes(call_.splits.empty() ? nullptr : &call_.splits[0], shape));
      case ResultShape::kExchanged:
        return cut(shape, dim_of(call_, shape),
                   sizes(call_.splits.empty() ? nullptr : &call_.splits[place_], shape));
      default:
        return whole(shape);
    }
  }

  Pieces output() const {
    const Shape& shape = seen_.outputs[static_cast<std::size_t>(ranks_[place_])];
    switch (traits(call_.kind).shape) {
      case ResultShape::kJoined:
        return cut(shape, dim_of(call_, own()), call_.dim ? lengths() : Sizes(ranks_.size(), 1));
      case ResultShape::kExchanged:
        return cut(shape, dim_of(call_, own()), received());
      default:
        return whole(shape);
    }
  }

 private:
  const Shape& shape_of(std::size_t member) const {
    return seen_.operands[static_cast<std::size_t>(ranks_[member])].shape();
  }
  const Shape& own() const { return shape_of(place_); }

  Sizes sizes(const Sizes* given, const Shape& shape) const {
    if (given) return *given;
    const std::size_t dim = dim_of(call_, shape);
    const std::int64_t along = dim < shape.size() ? shape[dim] : 0;
    return Sizes(ranks_.size(), along / std::ssize(ranks_));
  }

  // Returns the lengths of the members' operands along the dim.
  Sizes lengths() const {
    Sizes all;
    for (std::size_t m = 0; m < ranks_.size(); ++m)
      all.push_back(shape_of(m).empty() ? 1 : shape_of(m)[dim_of(call_, shape_of(m))]);
    return all;
  }

  Sizes received() const {
    Sizes all = lengths();
    for (std::size_t m = 0; m < ranks_.size(); ++m)
      all[m] = call_.splits.empty() ? all[m] / std::ssize(ranks_) : call_.splits[m][place_];
    return all;
  }

  const CallOnRanks& seen_;
  const CollectiveCall& call_;
  const std::vector<int>& ranks_;
  std::size_t place_;
};

}  // namespace

PiecesOfCall pieces_of(const Program& program, const CallOnRanks& seen) {
  PiecesOfCall all{std::vector<Pieces>(seen.operands.size()),
                   std::vector<Pieces>(seen.operands.size())};
  for (const std::vector<int>& ranks : program.partition_of(seen.call().group))
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const auto rank = static_cast<std::size_t>(ranks[place]);
      const Cutter cutter(seen, ranks, place);
      all.operands[rank] = cutter.operand();
      all.outputs[rank] = cutter.output();
    }
  return all;
}

}  // namespace distgrad
