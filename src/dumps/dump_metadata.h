// What distgrad.save_gradients says about a file: rank, meshes, and every parameter's placements.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dumps/dump.h"

namespace distgrad::dumps {

// Fills in what `metadata` has ("format", "rank", "world_size", "meshes", "parameters", as
// docs/compare.md describes them); parameters that have no gradient are added without a tensor, and
// a tensor that does not have the shape that its layout gives it is refused. `dump.gradients` has
// been read before. Throws UserError.
void apply_metadata(const nlohmann::ordered_json& metadata, RankDump& dump);

}  // namespace distgrad::dumps
