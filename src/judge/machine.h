// Declares what a diagnosis may ask of the simulators and of the ranks that ran the case.
#pragma once

#include <optional>

#include "model/run_result.h"

namespace distgrad {

class Machine {
 public:
  virtual ~Machine() = default;

  // Never throws for a program that cannot be simulated (see Simulation::invalid).
  virtual Simulation simulate(const SimulateRequest&) = 0;

  // Runs the case once more with the same subject and reports every collective call. Returns
  // nothing if that run fails.
  virtual std::optional<DistributedRun> observe() = 0;

  // Runs this program with the case's subject; each rank's backward starts with its weight. Returns
  // nothing if that run fails.
  virtual std::optional<DistributedRun> run(const Program&, const std::vector<double>& weights) = 0;

  // Drives the one call of `program` with the case's subject. Returns nothing if that run fails.
  virtual std::optional<DistributedRun> drive(const Program& program, const Drive&) = 0;
};

}  // namespace distgrad
