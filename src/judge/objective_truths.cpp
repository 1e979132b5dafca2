#include "judge/objective_truths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"
#include "model/element_index.h"

namespace distgrad {
namespace {

using Weights = std::vector<double>;

constexpr int kSmallWorld = 8;
constexpr int kLargestWorldInDetail = 64;
constexpr std::int64_t kMostElementsAsked = std::int64_t{1} << 22;  // of all rows: 32 MiB
constexpr double kMargin = 8;  // on first-order bounds that are scaled from one dtype to another
constexpr double kLargestRelativeBound = 1.0 / 16;  // beyond it a bound says nothing of the scale
constexpr std::size_t kShownElements = 8;

Weights unit(int world_size, int rank) {
  Weights weights(to_index(world_size), 0.0);
  weights[to_index(rank)] = 1;
  return weights;
}

// Returns a weight that differs for every rank without a pattern, so that no sum of differences
// with these weights is 0 by chance. It is an integer, so that exact gradients stay exact.
double mixing_weight(int rank) {
  std::uint64_t z = (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  return static_cast<double>(1 + (z >> 48));
}

// Returns the weights of two losses that are equal, with their gradients, exactly if the ranks
// agree as the objective says: each rank's loss with its mixing weight, and each list's mixing
// weights all on its first rank. This takes two backward passes instead of one for each rank.
std::pair<Weights, Weights> mixed_rows(const Program& program, const Objective& objective) {
  Weights own(to_index(program.world_size), 0.0), first(to_index(program.world_size), 0.0);
  for (const std::vector<int>& list : ranks_that_agree(program, objective)) {
    for (const int rank : list) {
      own[to_index(rank)] = mixing_weight(rank);
      first[to_index(list.front())] += mixing_weight(rank);
    }
  }
  return {own, first};
}

void add_row(std::vector<Weights>& rows, Weights weights) {
  if (std::find(rows.begin(), rows.end(), weights) == rows.end())
    rows.push_back(std::move(weights));
}

// Counts the elements of one row of gradients, as far as the program tells their shapes.
std::int64_t elements_of_a_row(const Program& program) {
  std::int64_t total = 0;
  for (const Input& input : program.inputs) {
    if (!input.requires_grad) continue;
    const std::int64_t copies = input.is_local() ? program.world_size : 1;
    if (const auto* array = std::get_if<Array>(&input.value)) {
      total += copies * array->size();
    } else if (const auto* by_rank = std::get_if<std::vector<Array>>(&input.value)) {
      for (const Array& value : *by_rank) total += value.size();
    } else if (const auto* random = std::get_if<RandomSpec>(&input.value)) {
      std::int64_t count = copies;
      for (const auto& size : random->shape)
        if (const auto* number = std::get_if<std::int64_t>(&size)) count *= *number;
      total += count;
    }
  }
  return total;
}

// Stands for Σ factor · row, over the rows that were asked for.
using Combination = std::vector<std::pair<std::size_t, double>>;

std::optional<Combination> combination_for(const std::vector<Weights>& rows,
                                           const Weights& weights) {
  const auto row_of = [&](const Weights& wanted) -> std::optional<std::size_t> {
    const auto found = std::find(rows.begin(), rows.end(), wanted);
    if (found == rows.end()) return std::nullopt;
    return static_cast<std::size_t>(found - rows.begin());
  };
  if (const auto row = row_of(weights)) return Combination{{*row, 1.0}};
  const double largest = largest_magnitude(weights);
  if (largest != 0 &&
      std::all_of(weights.begin(), weights.end(), [&](double w) { return w == largest; }))
    if (const auto sum = row_of(Weights(weights.size(), 1.0))) return Combination{{*sum, largest}};
  Combination combination;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    if (weights[r] == 0) continue;
    const auto row = row_of(unit(static_cast<int>(weights.size()), static_cast<int>(r)));
    if (!row) return std::nullopt;
    combination.push_back({*row, weights[r]});
  }
  return combination;
}

bool is_exact_factor(double factor) {
  const double scaled = std::ldexp(factor, 20);
  return scaled == std::nearbyint(scaled);
}

// Holds the value and, if something was computed, the sum of the absolute terms.
struct Combined {
  std::optional<Array> value;
  std::vector<double> magnitude;  // empty: equals the value's
};

Combined combined(const Simulation& simulation, const Combination& combination, std::size_t input,
                  std::size_t part) {
  if (combination.size() == 1 && combination[0].second == 1)
    return {simulation.gradients[combination[0].first][input].parts[part], {}};
  const std::optional<Array>& like = simulation.gradients[0][input].parts[part];
  if (!like) return {};
  std::vector<double> value(like->values().size(), 0.0), magnitude(value.size(), 0.0);
  for (const auto& [row, factor] : combination) {
    const std::optional<Array>& term = simulation.gradients[row][input].parts[part];
    if (!term) continue;
    for (std::size_t i = 0; i < value.size(); ++i) {
      value[i] += factor * (*term)[static_cast<std::int64_t>(i)];
      magnitude[i] += std::abs(factor * (*term)[static_cast<std::int64_t>(i)]);
    }
  }
  return {Array(like->shape(), std::move(value)), std::move(magnitude)};
}

// Holds the declared objective's bounds and values. A bound grows with the weights of the losses,
// of which there are at most world_size times as many.
struct Declared {
  const Array* bounds = nullptr;
  const Array* values = nullptr;
  int world_size = 1;

  double times(double largest) const {
    const double own = values ? largest_magnitude(values->values()) : 0;
    return own > 0 ? std::clamp(largest / own, 1.0, static_cast<double>(world_size)) : 1;
  }
};

Array bounds_of(const Slack& slack, bool exact_factors, const Combined& c,
                const Declared& declared) {
  const double largest =
      c.magnitude.empty() ? largest_magnitude(c.value->values()) : largest_magnitude(c.magnitude);
  const double times = declared.times(largest);
  std::vector<double> bounds(c.value->values().size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const double value = (*c.value)[static_cast<std::int64_t>(i)];
    const double magnitude = c.magnitude.empty() ? std::abs(value) : c.magnitude[i];
    bounds[i] =
        slack(value, exact_factors, magnitude, largest,
              declared.bounds ? times * (*declared.bounds)[static_cast<std::int64_t>(i)] : 0);
    // What is zero is right for no objective under which something is not.
    if (std::isfinite(bounds[i])) bounds[i] = std::min(bounds[i], largest / 2);
  }
  return Array(c.value->shape(), std::move(bounds));
}

ObjectiveTruth truth_for(const Simulation& simulation, const Combination& combination,
                         const std::vector<Slack>& slacks) {
  ObjectiveTruth truth;
  const bool is_declared = combination == Combination{{0, 1.0}};
  const bool exact_factors = std::all_of(combination.begin(), combination.end(),
                                         [](const auto& t) { return is_exact_factor(t.second); });
  for (std::size_t i = 0; i < simulation.gradients[0].size(); ++i) {
    const Gradient& like = simulation.gradients[0][i];
    Gradient gradient{.input = like.input, .parts = {}};
    std::vector<Array> bounds;
    for (std::size_t p = 0; p < like.parts.size(); ++p) {
      Combined c = combined(simulation, combination, i, p);
      if (!is_declared && c.value) {
        const bool has_bound =
            i < simulation.bounds.size() && simulation.bounds[i].parts[p].has_value();
        Declared declared{.world_size = static_cast<int>(simulation.losses.size())};
        if (has_bound) declared.bounds = &*simulation.bounds[i].parts[p];
        if (like.parts[p]) declared.values = &*like.parts[p];
        bounds.push_back(bounds_of(slacks[i], exact_factors, c, declared));
      } else if (!is_declared) {
        bounds.emplace_back();
      }
      gradient.parts.push_back(std::move(c.value));
    }
    truth.gradients.push_back(std::move(gradient));
    truth.bounds.push_back(std::move(bounds));
  }
  return truth;
}

// Replaces losses that differ by no more than their rounding with the same number.
std::vector<double> equalised(const Program& program, const Simulation& simulation) {
  std::vector<double> losses = simulation.losses;
  const auto bound = [&](std::size_t r) {
    return bound_in_float64(r < simulation.loss_bounds.size() ? simulation.loss_bounds[r] : 0,
                            program.dtype);
  };
  for (std::size_t r = 1; r < losses.size(); ++r)
    for (std::size_t s = 0; s < r; ++s)
      if (within(losses[r], losses[s], bound(r) + bound(s))) {
        losses[r] = losses[s];
        break;
      }
  return losses;
}

// Reports two rows (or combinations) of gradients that must be equal. The tolerance is loose on
// purpose: the same function, summed in another order, agrees to many digits; another does not.
struct Disagreement {
  std::size_t input = 0;
  std::size_t part = 0;
  Array first, second;
};

std::optional<Disagreement> disagreement(const Program& program, const Simulation& simulation,
                                         const Combination& a, const Combination& b) {
  for (std::size_t i = 0; i < simulation.gradients[0].size(); ++i) {
    const auto& parts = simulation.gradients[0][i].parts;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Combined x = combined(simulation, a, i, p), y = combined(simulation, b, i, p);
      if (!x.value || !y.value) continue;
      const double largest =
          std::max(largest_magnitude(x.value->values()), largest_magnitude(y.value->values()));
      const double slack = 64 * unit_roundoff(DType::kFloat64) * largest;
      const Array* declared = i < simulation.bounds.size() && simulation.bounds[i].parts[p]
                                  ? &*simulation.bounds[i].parts[p]
                                  : nullptr;
      const double truth = parts[p] ? largest_magnitude(parts[p]->values()) : 0;
      const double scale = truth > 0 ? std::max(1.0, largest / truth) : 1.0;
      const auto bound = [&](std::size_t e) {
        const double known = declared ? (*declared)[static_cast<std::int64_t>(e)] : 0;
        return slack + scale * bound_in_float64(std::isfinite(known) ? known : 0, program.dtype);
      };
      if (!difference(x.value->values(), y.value->values(), bound).equal)
        return Disagreement{i, p, *x.value, *y.value};
    }
  }
  return std::nullopt;
}

enum class Agreement { kYes, kNo, kUnknown };

Agreement gradients_agree(const SimulateRequest& asked, const Objective& objective,
                          const Simulation& simulation) {
  const auto lists = ranks_that_agree(asked.program, objective);
  bool each_rank_asked = true;
  for (const std::vector<int>& list : lists) {
    const auto first = combination_for(asked.weights, unit(asked.program.world_size, list.front()));
    for (const int rank : list) {
      const auto own = combination_for(asked.weights, unit(asked.program.world_size, rank));
      if (!first || !own) {
        each_rank_asked = false;
        continue;
      }
      if (rank != list.front() && disagreement(asked.program, simulation, *own, *first))
        return Agreement::kNo;
    }
  }
  if (each_rank_asked) return Agreement::kYes;
  const auto [own, first] = mixed_rows(asked.program, objective);
  const auto a = combination_for(asked.weights, own), b = combination_for(asked.weights, first);
  if (!a || !b) return Agreement::kUnknown;
  return disagreement(asked.program, simulation, *a, *b) ? Agreement::kNo : Agreement::kYes;
}

std::string elements_text(const Array& array) {
  std::string text;
  const std::size_t shown = std::min(kShownElements, array.values().size());
  for (std::size_t i = 0; i < shown; ++i)
    text += fmt::format("{}{}", i ? ", " : "", array[static_cast<std::int64_t>(i)]);
  if (shown < array.values().size()) text += ", ...";
  return array.shape().empty() ? text : "[" + text + "]";
}

std::string losses_text(const Simulation& simulation, const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShownElements, ranks.size()); ++i)
    text += fmt::format("{}rank {}: {}", i ? ", " : "", ranks[i],
                        simulation.losses[to_index(ranks[i])]);
  return ranks.size() > kShownElements ? text + ", ..." : text;
}

constexpr std::string_view kRemedy =
    "; use \"sum\" or \"mean\" where every rank's loss counts, {\"rank\": k} where one does";

InvalidProgram losses_differ(const Objective& declared, const Simulation& simulation,
                             const std::vector<int>& ranks) {
  return {"/objective",
          fmt::format("the objective {} needs one loss that ranks compute alike, but theirs differ "
                      "({}){}",
                      spelled(declared), losses_text(simulation, ranks), kRemedy),
          ""};
}

InvalidProgram gradients_differ(const Objective& declared, const Simulation& simulation,
                                const Disagreement& d, const std::string& first,
                                const std::string& second) {
  const Gradient& gradient = simulation.gradients[0][d.input];
  const std::string where =
      gradient.parts.size() > 1 ? fmt::format(" on rank {}", d.part) : std::string();
  return {"/objective",
          fmt::format("the objective {} needs one loss that ranks compute alike; the values agree "
                      "but not their gradients: that of {}{} is {} by {}, {} by {}{}",
                      spelled(declared), gradient.input, where, elements_text(d.first), first,
                      elements_text(d.second), second, kRemedy),
          ""};
}

}  // namespace

double bound_in_float64(double bound, DType dtype) {
  return kMargin * bound * (unit_roundoff(DType::kFloat64) / unit_roundoff(dtype));
}

bool has_few_bits(double value, int significand_bits) {
  if (value == 0 || !std::isfinite(value)) return true;
  int exponent = 0;
  const double bits = std::ldexp(std::frexp(value, &exponent), significand_bits * 3 / 4);
  return bits == std::nearbyint(bits);
}

Slack::Slack(const Program& program, const Simulation& simulation, std::size_t input)
    : significand_bits_(traits(program.dtype).significand_bits), exact_(simulation.exact) {
  double largest_bound = 0, largest = 0;
  for (const std::optional<Array>& part : simulation.gradients[0][input].parts)
    if (part) largest = std::max(largest, largest_magnitude(part->values()));
  if (input < simulation.bounds.size())
    for (const std::optional<Array>& part : simulation.bounds[input].parts)
      if (part) largest_bound = std::max(largest_bound, largest_magnitude(part->values()));
  if (largest > 0) relative_ = std::min(largest_bound / largest, kLargestRelativeBound);
  const double roundings = 4.0 + program.world_size + static_cast<double>(program.steps.size());
  roundings_ = std::min(roundings * unit_roundoff(program.dtype), kLargestRelativeBound);
}

double Slack::operator()(double value, bool exact_factors, double magnitude, double largest,
                         double declared_bound) const {
  if (exact_ && exact_factors && has_few_bits(value, significand_bits_)) return 0;
  const double own = std::isfinite(declared_bound) ? declared_bound : 0;
  return own + relative_ * largest + roundings_ * magnitude;
}

std::vector<std::vector<double>> weights_to_ask(const Program& program, const Objective& declared,
                                                Detail detail) {
  std::vector<Weights> rows = {truth_weights(program, declared)};
  const int n = program.world_size;
  const bool every = detail == Detail::kEveryRank;
  const bool small = (n + 1) * elements_of_a_row(program) <= kMostElementsAsked;
  if (every ? n <= kLargestWorldInDetail : n <= kSmallWorld && small) {
    for (int rank = 0; rank < n; ++rank) add_row(rows, unit(n, rank));
    return rows;
  }
  if (every || small) {
    const Objective replicated{.kind = Objective::Kind::kReplicated, .rank = 0, .axes = {}};
    add_row(rows, Weights(to_index(n), 1.0));
    add_row(rows, unit(n, 0));
    const auto [own, first] = mixed_rows(program, replicated);
    add_row(rows, own);
    add_row(rows, first);
  }
  if (!ranks_that_agree(program, declared).empty()) {
    const auto [own, first] = mixed_rows(program, declared);
    add_row(rows, own);
    add_row(rows, first);
  }
  return rows;
}

std::vector<ObjectiveTruth> objective_truths(const SimulateRequest& asked,
                                             const Simulation& simulation) {
  std::vector<ObjectiveTruth> truths;
  std::vector<Slack> slacks;
  for (std::size_t i = 0; i < simulation.gradients[0].size(); ++i)
    slacks.emplace_back(asked.program, simulation, i);
  for (const Objective& objective :
       defined_objectives(asked.program, equalised(asked.program, simulation))) {
    const auto combination =
        combination_for(asked.weights, truth_weights(asked.program, objective));
    if (!combination) continue;
    if (gradients_agree(asked, objective, simulation) != Agreement::kYes) continue;
    ObjectiveTruth truth = truth_for(simulation, *combination, slacks);
    truth.objective = objective;
    truth.name = spelled(objective);
    truths.push_back(std::move(truth));
  }
  return truths;
}

std::optional<InvalidProgram> check_replicated(const SimulateRequest& asked,
                                               const Objective& declared,
                                               const Simulation& simulation) {
  const Program& program = asked.program;
  const std::vector<double> losses = equalised(program, simulation);
  const auto lists = ranks_that_agree(program, declared);
  for (const std::vector<int>& list : lists)
    for (const int rank : list)
      if (!within(losses[to_index(rank)], losses[to_index(list.front())], 0))
        return losses_differ(declared, simulation, list);
  if (gradients_agree(asked, declared, simulation) != Agreement::kNo) return std::nullopt;
  for (const std::vector<int>& list : lists) {
    const auto first = combination_for(asked.weights, unit(program.world_size, list.front()));
    for (const int rank : list) {
      const auto own = combination_for(asked.weights, unit(program.world_size, rank));
      if (!first || !own || rank == list.front()) continue;
      if (const auto d = disagreement(program, simulation, *first, *own))
        return gradients_differ(declared, simulation, *d,
                                fmt::format("rank {}'s loss", list.front()),
                                fmt::format("rank {}'s", rank));
    }
  }
  const auto [own, first] = mixed_rows(program, declared);
  const auto d = disagreement(program, simulation, *combination_for(asked.weights, first),
                              *combination_for(asked.weights, own));
  return gradients_differ(declared, simulation, d.value_or(Disagreement{}),
                          "the first ranks' losses, weighted", "all ranks' with the same weights");
}

}  // namespace distgrad
