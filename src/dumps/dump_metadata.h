// Reads what distgrad.save_gradients says about a file: rank, meshes, and every parameter's
// placements.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dumps/dump.h"

namespace distgrad::dumps {

// Fills in what `metadata` has ("format", "rank", "world_size", "meshes", "parameters", as
// docs/compare.md describes them). Parameters without a gradient are added without a tensor, and a
// tensor whose shape contradicts its layout is refused. `dump.gradients` must have been read
// before. Throws UserError.
void apply_metadata(const nlohmann::ordered_json& metadata, RankDump& dump);

}  // namespace distgrad::dumps
