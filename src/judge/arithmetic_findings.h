// Names mistakes by arithmetic on the gradients alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/evidence.h"
#include "judge/scaling.h"

namespace distgrad {

// Returns true if every gradient that is missing, if any, is zero in the truth.
bool lacks_only_zeros(const Evidence&);

// Reports missing gradients. `step` is the collective whose backward gave none, or null.
std::optional<Finding> no_gradient_finding(const Evidence&, const Step* step);

// Returns the objectives, other than the declared one, under which every gradient is right.
std::vector<std::string> satisfied_objectives(const Evidence&);
std::optional<Finding> objective_finding(const Evidence&, const std::optional<Scaling>&);

std::optional<Finding> scaled_finding(const Evidence&, const std::optional<Scaling>&);

// Reports ranks that must hold one gradient and do not, and inputs whose shares add up to the
// truth.
std::vector<Finding> unsynchronised_findings(const Evidence&);

// Reports gradients that are off by no more than a narrower dtype rounds.
std::optional<Finding> precision_finding(const Evidence&, const std::optional<Scaling>&);
// Does the same for users' code, whose backward cannot be driven. Each element by itself must be
// off by no more than that, and for a 16-bit dtype the numbers must show it.
std::optional<Finding> precision_of_code(const Evidence&, const std::optional<Scaling>&);

// Reports NaN where the truth is finite.
std::optional<Finding> stale_finding(const Evidence&);

}  // namespace distgrad
