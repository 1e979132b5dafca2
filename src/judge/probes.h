// What reaches each value of a program that calls code, whose backwards cannot be observed from
// outside: the truth's cotangents and the ranks' own. A zero is added to every value on every rank,
// an input of its own; the gradient of that zero is the value's cotangent.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "judge/machine.h"
#include "model/program.h"

namespace distgrad {

// Of a cotangent, all elements or, for what is large or slow to measure, one number a rank: the
// product with a direction that is the same for the truth and the ranks.
enum class ProbeDetail { kElements, kDirection };

// By rank: an array each.
struct ProbedValue {
  std::string name;  // of an input that wants a gradient, or of a step that is reported
  // Of a value that several take: the one call that what is here goes through. Empty: all of it.
  std::string taken_by;
  std::vector<Array> truth;
  std::vector<Array> ranks;      // zeros where nothing arrives
  std::vector<int> wrong_ranks;  // where what arrives is not what is right
};

struct Probed {
  std::map<std::string, std::vector<Array>> inputs;  // values by rank of every input
  std::vector<ProbedValue> values;                   // in program order, inputs first

  // The steps of which one has a wrong backward: they take the last wrong value, and what arrives
  // at every reported step behind it is right. "" among them: the loss's expression. Empty: nothing
  // is wrong.
  std::vector<std::string> parting_steps(const Program&) const;
};

// Runs and simulates once more, or where the truth is measured measures once more. `truth_weights`
// and `run_weights` by rank; the simulation is the program's own.
// Nothing where it cannot be told: too many elements to measure, a run that fails.
std::optional<Probed> probed(Machine&, const Program&, ProbeDetail,
                             const std::vector<double>& truth_weights,
                             const std::vector<double>& run_weights, const Simulation&);

}  // namespace distgrad
