// What one program means: asked once for all cases that differ in subject and backend only.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "compare/dispute.h"
#include "model/run_result.h"
#include "model/scenario.h"
#include "pool/job.h"

namespace distgrad {

struct SharedTruth {
  std::vector<std::size_t> cases;
  SimulateRequest asked;
  SimulationRun run;
  std::optional<IntendedTruth> intended;  // of code, once some case needs it
  std::size_t unfinished = 0;             // cases; at 0 the tensors are let go
};

// A GPU's functions are less accurate: the same truth has wider bounds.
bool is_on_gpu(const Case&);

// What decides the truth and its bounds, and nothing else: scenario, world size, dtype, objective,
// on a GPU, interpreter.
using SharedTruthKey = std::tuple<const Scenario*, int, DType, std::string, bool, std::string>;
SharedTruthKey key_of(const Case&);

// Of many elements the error analysis takes long: it is asked for only where some bit differs. The
// file's guards need it always.
bool asks_for_bounds_at_once(const Program&);

// The cases of a run with simulate_only: subjects and backends do not matter to it.
std::vector<Case> one_for_each_truth(std::span<const Case> cases);

}  // namespace distgrad
