// The pieces that a collective cuts its tensors into: one rank's slice of what is gathered, one
// chunk of what is scattered. In terms of them its backward is a small matrix of numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "judge/call_on_ranks.h"

namespace distgrad {

using Elements = std::vector<std::size_t>;  // of a tensor, row-major

// Of one rank's tensor, by rank of the group where the collective cuts it; else one with all
// elements.
using Pieces = std::vector<Elements>;

struct PiecesOfCall {
  std::vector<Pieces> operands, outputs;  // by rank of the world
};

PiecesOfCall pieces_of(const Program&, const CallOnRanks&);

}  // namespace distgrad
