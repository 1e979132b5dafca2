// Holds what a diagnosis looks at, and answers the questions that all its parts ask.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/assemble.h"
#include "model/comparison.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad {

// Describes one tensor that must equal the truth by itself: a rank's gradient of a local input, or
// the assembled gradient of another layout.
struct ComparedPart {
  std::size_t input = 0;  // index into comparison.gradients
  std::vector<int> ranks;
  std::optional<Array> observed;  // absent: missing
  Array truth;
  std::optional<Array> bound;
};

class Evidence {
 public:
  // Keeps references to all arguments but the simulation. The comparison must be of a run, whose
  // gradients have what was observed.
  Evidence(const Case&, const SimulateRequest& asked, const Simulation&, const CaseComparison&);

  const Case& which() const { return which_; }
  const Program& program() const { return asked_.program; }
  const SimulateRequest& asked() const { return asked_; }
  const Simulation& simulation() const { return simulation_; }
  const CaseComparison& comparison() const { return comparison_; }
  const Tolerance& tolerance() const;
  bool divides_replicated() const { return distgrad::divides_replicated(which_, program()); }

  // Returns the inputs that require grad, in the order of the gradients.
  const std::vector<const Input*>& inputs() const { return inputs_; }
  const std::vector<ComparedPart>& parts() const { return parts_; }

  std::vector<int> differing_ranks() const;  // of any input
  std::vector<std::size_t> differing_inputs() const;
  double largest_bound(std::size_t input) const;  // of the truth, by index of the gradient
  // Returns the same without the room for rounding in users' code: two runs of it round alike.
  double bound_between_runs(std::size_t input) const;
  std::vector<int> ranks_without_gradient() const;  // of an input whose piece there has elements
  std::vector<const Step*> collectives() const;

 private:
  const Case& which_;
  const SimulateRequest& asked_;
  Simulation simulation_;  // includes the room for rounding in users' code
  const CaseComparison& comparison_;
  std::vector<const Input*> inputs_;
  std::vector<ComparedPart> parts_;
  std::vector<int> missing_;
};

}  // namespace distgrad
