// Finds the pieces into which a collective cuts its tensors: one rank's slice of a gathered tensor,
// one chunk of a scattered one. In terms of them its backward is a small matrix of numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "judge/call_on_ranks.h"

namespace distgrad {

using Elements = std::vector<std::size_t>;  // of a tensor, row-major

// Holds the pieces of one rank's tensor, one for each rank of the group if the collective cuts it,
// else one with all elements.
using Pieces = std::vector<Elements>;

struct PiecesOfCall {
  std::vector<Pieces> operands, outputs;  // by rank of the world
};

PiecesOfCall pieces_of(const Program&, const CallOnRanks&);

}  // namespace distgrad
