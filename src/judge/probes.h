// Measures what cotangent reaches each value of a program that calls code, whose backwards cannot
// be observed from outside: the truth's and the ranks' own. It adds a zero, an input of its own, to
// every value on every rank; the gradient of that zero is the value's cotangent.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "judge/machine.h"
#include "model/program.h"

namespace distgrad {

// Says what to measure of a cotangent: all elements or, if it is large or slow to measure, one
// number a rank, its product with a direction that is the same for the truth and the ranks.
enum class ProbeDetail { kElements, kDirection };

// Holds one array for each rank.
struct ProbedValue {
  std::string name;  // of an input that requires grad, or of a reported step
  // If several steps take the value, names the one call whose share this is; empty for the whole.
  std::string taken_by;
  std::vector<Array> truth;
  std::vector<Array> ranks;      // zeros where nothing arrives
  std::vector<int> wrong_ranks;  // where the cotangent that arrives is wrong
};

struct Probed {
  std::map<std::string, std::vector<Array>> inputs;  // values by rank of every input
  std::vector<ProbedValue> values;                   // in program order, inputs first

  // Returns the steps one of which has a wrong backward: they take the last wrong value, and what
  // arrives at every reported step after it is right. "" stands for the loss's expression. Empty:
  // nothing is wrong.
  std::vector<std::string> parting_steps(const Program&) const;
};

// Runs and simulates once more or, if the truth is measured, measures once more. The weights are by
// rank; the simulation is the program's own. Returns nothing if there are too many elements to
// measure, or a run fails.
std::optional<Probed> probed(Machine&, const Program&, ProbeDetail,
                             const std::vector<double>& truth_weights,
                             const std::vector<double>& run_weights, const Simulation&);

}  // namespace distgrad
