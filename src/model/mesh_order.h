// A mesh laid over the processes of a launcher in another order than its own.
#pragma once

#include <string>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

// The process that each rank takes, by rank, where the axes lie over the processes in `order`: the
// last one varies from process to process, as in row-major order. Rank 0 stays at process 0. Empty:
// as launched, since `order` is the mesh's own, or not an order of just these axes.
std::vector<int> places_in_order(const std::vector<MeshAxis>& mesh,
                                 const std::vector<std::string>& order);

// Whether `order` names just these axes.
bool is_order_of(const std::vector<std::string>& order, const std::vector<MeshAxis>& mesh);

}  // namespace distgrad
