#include "judge/scaling.h"

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"

namespace distgrad {
namespace {

FactorNames names_in(const Program& program) {
  std::vector<NamedCount> counts;
  for (const Group& group : program.groups) {
    if (group.partition.empty()) continue;
    const std::size_t size = group.partition[0].size();
    const bool is_even = std::all_of(group.partition.begin(), group.partition.end(),
                                     [&](const auto& list) { return list.size() == size; });
    const bool is_world =
        group.partition.size() == 1 && static_cast<int>(size) == program.world_size;
    if (is_even && !is_world)
      counts.push_back({(group.is_mesh_axis ? "" : "group ") + group.name, static_cast<int>(size),
                        NamedCount::Kind::kAxis});
  }
  counts.push_back({"ranks", program.world_size, NamedCount::Kind::kOther});
  return {std::move(counts), program.dtype == DType::kFloat16 || program.dtype == DType::kBFloat16};
}

double bound_at(const ComparedPart& part, std::int64_t i) {
  return part.bound ? (*part.bound)[i] : 0;
}

// Holds the ratio at the element with the largest truth, with its error.
struct Ratio {
  double value = 0;
  double error = 0;
};

std::optional<Ratio> ratio_of(const std::vector<const ComparedPart*>& parts, double roundoff) {
  double largest = 0;
  std::optional<Ratio> ratio;
  for (const ComparedPart* part : parts)
    for (std::int64_t i = 0; i < part->truth.size(); ++i) {
      const double truth = part->truth[i];
      if (!(std::abs(truth) > largest) || !std::isfinite(truth)) continue;
      largest = std::abs(truth);
      const double value = (*part->observed)[i] / truth;
      const double relative_bound = std::min(bound_at(*part, i) / largest, 1.0 / 16);
      ratio = Ratio{value, (relative_bound + 8 * roundoff) * std::max(1.0, std::abs(value))};
    }
  return ratio;
}

bool all_are(double factor, double error, const std::vector<const ComparedPart*>& parts,
             double roundoff) {
  const double scale = std::max(1.0, std::abs(factor));
  for (const ComparedPart* part : parts) {
    const auto observed = part->observed->values(), truth = part->truth.values();
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const double bound = scale * bound_at(*part, static_cast<std::int64_t>(i)) +
                           (error + 4 * roundoff * scale) * std::abs(truth[i]);
      if (!within(observed[i], factor * truth[i], std::isfinite(bound) ? bound : 0)) return false;
    }
  }
  return true;
}

// Counts the elements of the truth that are not 0. One truth of several parts counts once.
std::int64_t nonzero_elements(const std::vector<const ComparedPart*>& parts) {
  std::int64_t count = 0;
  const double* counted = nullptr;
  for (const ComparedPart* part : parts) {
    if (part->truth.values().data() == counted) continue;
    counted = part->truth.values().data();
    count += std::count_if(part->truth.values().begin(), part->truth.values().end(),
                           [](double v) { return v != 0; });
  }
  return count;
}

std::optional<double> factor_of(const Program& program,
                                const std::vector<const ComparedPart*>& parts) {
  for (const ComparedPart* part : parts)
    if (!part->observed || part->observed->shape() != part->truth.shape()) return std::nullopt;
  const double roundoff = unit_roundoff(program.dtype);
  const auto ratio = ratio_of(parts, roundoff);
  if (!ratio || !std::isfinite(ratio->value)) return std::nullopt;
  if (std::abs(ratio->value - 1) <= ratio->error) return std::nullopt;
  if (std::abs(ratio->value) <= ratio->error && all_are(0, 0, parts, roundoff)) return 0;
  const NamedFactor named =
      names_in(program).name(ratio->value, ratio->error / std::abs(ratio->value));
  // One element is always some number times the truth.
  const bool is_shown = nonzero_elements(parts) > 1;
  const bool is_telling = named.is_size || named.value == -1 || (named.known && is_shown);
  if (is_telling && all_are(named.value, 0, parts, roundoff)) return named.value;
  if (!is_shown) return std::nullopt;
  return all_are(ratio->value, ratio->error, parts, roundoff) ? std::optional(ratio->value)
                                                              : std::nullopt;
}

bool is_zero(const ComparedPart& part) { return largest_magnitude(part.truth.values()) == 0; }

}  // namespace

std::optional<Scaling> scaling_of(const Evidence& evidence) {
  const std::vector<std::size_t> differing = evidence.differing_inputs();
  if (differing.empty()) return std::nullopt;
  Scaling scaling;
  for (const std::size_t input : differing) {
    std::vector<const ComparedPart*> parts;
    for (const ComparedPart& part : evidence.parts())
      if (part.input == input) parts.push_back(&part);
    const auto factor = factor_of(evidence.program(), parts);
    if (!factor) return std::nullopt;
    scaling.by_input.push_back({input, *factor});
  }
  const double first = scaling.by_input[0].second;
  const double error =
      16 * unit_roundoff(evidence.program().dtype) * std::max(1.0, std::abs(first));
  if (std::all_of(scaling.by_input.begin(), scaling.by_input.end(),
                  [&](const auto& f) { return std::abs(f.second - first) <= error; }))
    scaling.common = first;
  for (const ComparedPart& part : evidence.parts())
    if (evidence.comparison().gradients[part.input].equal && !is_zero(part))
      scaling.all_inputs = false;
  return scaling;
}

NamedFactor factor_of_exact(const Program& program, double factor) {
  constexpr double kPrecision = 1e-9;
  return names_in(program).name(factor, kPrecision);
}

}  // namespace distgrad
