// Finds the ranks over which a parameter may be meant to be reduced, among those that exist.
#pragma once

#include "dumps/parameter.h"

namespace distgrad::dumps {

// Groups the ranks of the mesh that differ only in the axes of `subset` (bits).
std::vector<std::vector<int>> lines_of(const DumpMesh&, unsigned subset);

// Fills in `p.axes`: the axes of the meshes that the ranks hold it on and of the world's, several
// axes together, process groups, and all ranks.
void find_axes(const Holders&, const std::vector<PieceOnRank>&, Parameter& p);

}  // namespace distgrad::dumps
