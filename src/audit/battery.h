// Makes the audit's battery: for one collective and op, small programs that exercise every aspect
// of it, as scenario files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "audit/trial.h"

namespace distgrad {

struct BatteryOptions {
  std::span<const Aspect> requested = {};  // aspects that are tried on request only
  std::string objective = {};  // "sum", "mean", "replicated" or "rank:1": all programs are written
                               // for this; "": for every one that an audit knows
  int world_size = 0;          // of every program; 0: what each aspect needs
};

// Returns the smallest first, those on request last. `op` counts for kinds that take one.
std::vector<Trial> battery(CollectiveKind kind, ReduceOp op, const BatteryOptions& options = {});

}  // namespace distgrad
