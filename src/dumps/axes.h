// Over which ranks a parameter may be meant to be reduced: only over what there is.
#pragma once

#include "dumps/parameter.h"

namespace distgrad::dumps {

// Fills in `p.axes`: the axes of the meshes that the ranks hold it on and of the world's, several
// of them together, process groups, and all ranks.
void find_axes(const Holders&, const std::vector<PieceOnRank>&, Parameter& p);

}  // namespace distgrad::dumps
