#include "judge/user_code_slack.h"

#include <algorithm>

#include "judge/closeness.h"
#include "model/subject_text.h"

namespace distgrad {
namespace {

constexpr double kCancellationInLosses = 64;

Array with_added(const Array& bound, double room) {
  std::vector<double> values(bound.values().begin(), bound.values().end());
  for (double& v : values) v += room;
  return Array(bound.shape(), std::move(values));
}

}  // namespace

double largest_gradient(const Simulation& simulation, std::size_t input) {
  double largest = 0;
  for (const std::vector<Gradient>& row : simulation.gradients)
    if (input < row.size())
      for (const auto& part : row[input].parts)
        if (part) largest = std::max(largest, largest_magnitude(part->values()));
  return largest;
}

bool is_code_of_users(std::string_view subject) {
  return std::ranges::any_of(parts_of(subject), [](const SubjectPart& part) {
    return part.code != SubjectPart::Code::kNone && !part.is_reference() && !part.is_in_place();
  });
}

double roundings_of_users(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 16;
    case DType::kBFloat16:
      return 8;
    default:
      return 64;
  }
}

double user_code_slack(const Simulation& simulation, std::size_t input, std::string_view subject,
                       DType dtype) {
  if (!is_code_of_users(subject)) return 0;
  return roundings_of_users(dtype) * unit_roundoff(dtype) * largest_gradient(simulation, input);
}

Simulation with_user_code_slack(const Simulation& simulation, std::string_view subject,
                                DType dtype) {
  Simulation roomy = simulation;
  if (simulation.invalid || !is_code_of_users(subject)) return roomy;
  const double relative = roundings_of_users(dtype) * unit_roundoff(dtype);
  for (std::size_t i = 0; i < roomy.bounds.size(); ++i) {
    const double room = user_code_slack(simulation, i, subject, dtype);
    for (auto& part : roomy.bounds[i].parts)
      if (part) part = with_added(*part, room);
  }
  for (StepValue& step : roomy.steps) {
    double largest = 0;
    for (const Array& value : step.by_rank)
      largest = std::max(largest, largest_magnitude(value.values()));
    for (Array& bound : step.bound) bound = with_added(bound, relative * largest);
  }
  const double room_of_losses = kCancellationInLosses * relative *
                                largest_magnitude(std::span<const double>(simulation.losses));
  if (!roomy.bounds.empty())
    for (double& bound : roomy.loss_bounds) bound += room_of_losses;
  return roomy;
}

}  // namespace distgrad
