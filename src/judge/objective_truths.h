// Works out the truth under every objective, not only the declared one: which backward passes the
// simulator is asked for, and how their gradients combine. Gradients are linear in the weights of
// the losses, so one pass for each rank's loss gives every objective.
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
  // Asks for what a report needs. Up to 8 ranks with small tensors that is the declared objective
  // and every rank's loss by itself. In larger worlds it is the declared objective, the sum, rank
  // 0's loss, and rows that show whether the ranks' gradients agree. With large tensors it is the
  // declared objective and, if ranks must agree under it, such rows.
  kUsual,
  // Asks for every rank's loss by itself, up to 64 ranks. For cases whose gradients differ.
  kEveryRank,
};

// Returns rows for SimulateRequest::weights. Row 0 is the declared objective's truth_weights; no
// row occurs twice.
std::vector<std::vector<double>> weights_to_ask(const Program&, const Objective& declared,
                                                Detail = Detail::kUsual);

// Returns how far a float64 simulation may lie from the exact value if `bound` is its bound for the
// case's dtype: to first order the bound is proportional to the unit roundoff. Includes a margin.
double bound_in_float64(double bound, DType);

// Holds the gradients of one objective, for every input that requires grad.
struct ObjectiveTruth {
  Objective objective;
  std::string name;  // as in case names
  std::vector<Gradient> gradients;
  // Has, by input, how far the ranks' values may lie from these gradients. The simulator bounds
  // only the declared objective's; `Slack` derives the others.
  std::vector<std::vector<Array>> bounds;
};

// Bounds how far observed values may lie from values other than the declared truth: another
// objective's, or a figure of the file's. Only the declared truth comes with bounds derived from
// the operations. For the others the slack is 0 if the case is exact, every factor is exact and the
// value has few bits. Else it is the element's declared bound, plus the input's largest relative
// bound times the tensor's largest value, plus a rounding for each step and rank, relative to the
// value's terms. It need not be sharp, since objectives differ by factors.
class Slack {
 public:
  // `input` indexes simulation.gradients[0].
  Slack(const Program&, const Simulation&, std::size_t input);

  // `exact_factors` says that no factor such as 1/3 went into the value. `magnitude` is the sum of
  // the absolute terms of the value, `largest` the largest value of the tensor.
  double operator()(double value, bool exact_factors, double magnitude, double largest,
                    double declared_bound) const;

 private:
  int significand_bits_;
  bool exact_;
  double relative_ = 0;   // largest bound over largest gradient
  double roundings_ = 0;  // a relative error
};

// Returns true if the value has at most three quarters of the dtype's bits, so it was not rounded.
bool has_few_bits(double value, int significand_bits);

// Returns all objectives that are defined for the case and that the rows determine, in the order of
// defined_objectives. `replicated` counts as defined if losses and gradients agree. Bounds are
// empty for an objective whose weights are row 0's: the simulation's own hold.
std::vector<ObjectiveTruth> objective_truths(const SimulateRequest& asked, const Simulation&);

// Checks that the ranks agree on the loss and its gradient if the declared objective says so.
// Otherwise returns a user's error that shows the values; if the command line gave the objective,
// it is the reason to skip.
std::optional<InvalidProgram> check_replicated(const SimulateRequest& asked,
                                               const Objective& declared, const Simulation&);

}  // namespace distgrad
