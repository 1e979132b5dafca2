// The truth under every objective, not only the declared one: which backward passes the simulator
// is asked for, and how their gradients combine. Gradients are linear in the weights of the losses,
// so one pass for each rank's loss gives every objective there is.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "judge/assemble.h"
#include "model/objective.h"
#include "model/run_result.h"

namespace distgrad {

enum class Detail {
  // What a report needs: the declared objective, and while the world (8 ranks) and the tensors are
  // small every rank's loss by itself; in larger worlds the sum, rank 0's loss, and for a
  // replicated objective two more rows that show whether the ranks' gradients agree; with large
  // tensors the declared objective and those two alone.
  kUsual,
  // For a case whose gradients differ: every rank's loss by itself up to 64 ranks.
  kEveryRank,
};

// For SimulateRequest::weights. Row 0 is the declared objective's truth_weights; none occurs twice.
std::vector<std::vector<double>> weights_to_ask(const Program&, const Objective& declared,
                                                Detail = Detail::kUsual);

// How far a float64 simulation may lie from the exact value where its bound for the case's dtype is
// `bound`: the bound is proportional to the unit roundoff to first order. With a margin.
double bound_in_float64(double bound, DType);

// The gradients of one objective, for every input that requires grad.
struct ObjectiveTruth {
  Objective objective;
  std::string name;  // as in case names
  std::vector<Gradient> gradients;
  // By input: how far what the ranks observe may lie from these gradients. The simulator bounds the
  // declared objective's alone (`Slack` says how these are had from it).
  std::vector<std::vector<Array>> bounds;
};

// How far observed values may lie from values that are not the declared truth: another objective's,
// a figure of the file's. Only the declared truth comes with bounds, derived from the operations
// themselves. For the others it is 0 where the case is exact, what was multiplied in is a power of
// two's multiple and the value has few bits; else the element's declared bound, plus the input's
// largest bound relative to its largest gradient applied to the tensor's largest value, plus one
// rounding for each step and rank relative to the terms that make up the value. That tells
// objectives apart, which differ by factors, and does not pretend to be sharp.
class Slack {
 public:
  // `input` indexes simulation.gradients[0].
  Slack(const Program&, const Simulation&, std::size_t input);

  // `exact_factors`: no factor such as 1/3 went into the value. `magnitude`: the sum of the
  // absolute terms it is made of. `largest`: of the tensor.
  double operator()(double value, bool exact_factors, double magnitude, double largest,
                    double declared_bound) const;

 private:
  int significand_bits_;
  bool exact_;
  double relative_ = 0;   // largest bound over largest gradient
  double roundings_ = 0;  // a relative error
};

// Few enough bits that no rounding can be behind it: at most three quarters of the dtype's.
bool has_few_bits(double value, int significand_bits);

// All objectives that are defined for the case and that the rows asked for determine, in the order
// of defined_objectives. `replicated` counts as defined where losses and gradients agree.
// Bounds are left empty for an objective whose weights are row 0's: the simulation's own hold.
std::vector<ObjectiveTruth> objective_truths(const SimulateRequest& asked, const Simulation&);

// Whether the ranks agree on the loss and its gradient where the declared objective says so: else a
// user's error (of the file, or, where the command line gave the objective, the reason to skip)
// that shows the values.
std::optional<InvalidProgram> check_replicated(const SimulateRequest& asked,
                                               const Objective& declared, const Simulation&);

}  // namespace distgrad
