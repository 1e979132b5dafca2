// What a diagnosis may ask of the simulators and of the ranks that ran the case.
#pragma once

#include <optional>

#include "model/run_result.h"

namespace distgrad {

class Machine {
 public:
  virtual ~Machine() = default;

  // Never throws for a program that cannot be simulated (Simulation::invalid).
  virtual Simulation simulate(const SimulateRequest&) = 0;

  // The case once more, by the same subject, with every collective call reported. Nothing where
  // that run fails.
  virtual std::optional<DistributedRun> observe() = 0;

  // This program, by the case's subject, each rank's backward started with its weight. Nothing
  // where that run fails.
  virtual std::optional<DistributedRun> run(const Program&, const std::vector<double>& weights) = 0;

  // The one call of `program`, driven by the case's subject. Nothing where that run fails.
  virtual std::optional<DistributedRun> drive(const Program& program, const Drive&) = 0;
};

}  // namespace distgrad
