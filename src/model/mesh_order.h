// Lays a mesh over the processes of a launcher in an order of axes other than the mesh's own.
#pragma once

#include <string>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

// Returns the process that each rank takes if the axes lie over the processes in `order`, whose
// last axis varies fastest, as in row-major order. Rank 0 stays at process 0. Returns an empty
// list, which means "as launched", if `order` is the mesh's own order or does not name exactly its
// axes.
std::vector<int> places_in_order(const std::vector<MeshAxis>& mesh,
                                 const std::vector<std::string>& order);

// Returns true if `order` names exactly the axes of `mesh`.
bool is_order_of(const std::vector<std::string>& order, const std::vector<MeshAxis>& mesh);

}  // namespace distgrad
