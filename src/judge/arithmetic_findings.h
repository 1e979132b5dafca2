// Findings by arithmetic on the gradients alone: what they themselves show.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/evidence.h"
#include "judge/scaling.h"

namespace distgrad {

// Whether every gradient that is missing (if any) is zero in the truth.
bool lacks_only_zeros(const Evidence&);

// Missing gradients. With `step`, the collective whose backward gave none.
std::optional<Finding> no_gradient_finding(const Evidence&, const Step* step);

// The objectives, other than the declared, under which every gradient is right.
std::vector<std::string> satisfied_objectives(const Evidence&);
std::optional<Finding> objective_finding(const Evidence&, const std::optional<Scaling>&);

std::optional<Finding> scaled_finding(const Evidence&, const std::optional<Scaling>&);

// Ranks that must hold the same gradient and do not, and whether their sum is the truth.
std::vector<Finding> unsynchronised_findings(const Evidence&);

// Off by no more than a narrower dtype rounds.
std::optional<Finding> precision_finding(const Evidence&, const std::optional<Scaling>&);
// The same of code, whose backward cannot be driven: each element by itself is off by no more, and
// sixteen bits show in the numbers.
std::optional<Finding> precision_of_code(const Evidence&, const std::optional<Scaling>&);

// NaN or infinite where the truth is finite.
std::optional<Finding> stale_finding(const Evidence&);

}  // namespace distgrad
