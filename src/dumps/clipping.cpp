#include "dumps/clipping.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/number_text.h"
#include "dumps/axes.h"

namespace distgrad::dumps {
namespace {

constexpr double kLeast = 1e-4;  // relative, of norms: more than rounding, except in short dtypes

struct Norm {
  double squares = 0;
  std::int64_t elements = 0;
  DType dtype = DType::kFloat64;

  void add(const Norm& other) {
    squares += other.squares;
    elements += other.elements;
    dtype = coarser(dtype, other.dtype);
  }
};

// Returns the whole gradients by name, or nothing if they are unknown.
std::optional<std::map<std::string, DumpTensor>> whole_gradients(Holders& reference,
                                                                 const Dump& observed,
                                                                 const Tolerance& tolerance) {
  std::map<std::string, DumpTensor> whole;
  for (const RankDump& rank : observed.ranks)
    for (const auto& [name, gradient] : rank.gradients) {
      if (whole.count(name) > 0) continue;
      const Reference truth = reference_of(reference, name, tolerance);
      if (truth.kind == Reference::Kind::kFull)
        whole[name] = truth.full;
      else if (truth.kind != Reference::Kind::kMissing)
        return std::nullopt;
    }
  return whole;
}

std::optional<Norm> norm_of(const RankDump& rank) {
  Norm norm;
  for (const auto& [name, gradient] : rank.gradients) {
    if (!gradient.tensor) continue;
    if (gradient.layout)
      for (const DumpPlacement& placement : gradient.layout->placements)
        if (placement.kind == DumpPlacement::Kind::kPartial) return std::nullopt;
    const DumpTensor& own = *gradient.tensor;
    norm.add({sum_of_squares(whole_stream(own)), own.size(), own.dtype});
  }
  return norm;
}

// Returns true if everything wrong is a nameless multiple of the reference, at most one for each
// rank.
bool are_multiples(const std::vector<ParameterResult>& results) {
  bool any = false;
  for (const ParameterResult& r : results) {
    if (r.is_right()) continue;
    const bool differs_by_rank =
        r.explanation == Explanation::kUnsynchronised || r.explanation == Explanation::kSomeRanks;
    if (!differs_by_rank && r.explanation != Explanation::kScaled) return false;
    any = any || differs_by_rank || !r.factor_known;
  }
  return any;
}

bool have_one_factor(const std::vector<ParameterResult>& results) {
  std::optional<double> factor;
  for (const ParameterResult& r : results) {
    if (r.explanation == Explanation::kNoise || r.largest_expected == 0) continue;
    if (!r.factor || !r.ranks.empty()) return false;
    if (!factor) factor = r.factor;
    if (!has_factor(r, *factor)) return false;
  }
  return factor.has_value();
}

// Returns all ranks in one group; then those along each axis of the mesh.
std::vector<std::pair<std::string, std::vector<std::vector<int>>>> groups_of_ranks(
    const Dump& observed) {
  std::vector<std::pair<std::string, std::vector<std::vector<int>>>> found = {{"all ranks", {{}}}};
  for (const RankDump& rank : observed.ranks) found[0].second[0].push_back(rank.rank);
  const DumpMesh* mesh = observed.mesh();
  if (!mesh || !observed.absent_ranks().empty()) return found;
  for (std::size_t axis = 0; axis < mesh->axes.size(); ++axis)
    found.push_back({"the ranks of " + mesh->axes[axis].name, lines_of(*mesh, 1u << axis)});
  return found;
}

}  // namespace

std::string clipped_by_other_norm(Holders& reference, const Dump& observed,
                                  const Tolerance& tolerance,
                                  const std::vector<ParameterResult>& results) {
  if (observed.ranks.size() < 2 || !are_multiples(results)) return {};
  const auto whole = whole_gradients(reference, observed, tolerance);
  if (!whole) return {};
  Norm all;
  for (const auto& [name, tensor] : *whole)
    all.add({sum_of_squares(whole_stream(tensor)), tensor.size(), tensor.dtype});
  const double norm = std::sqrt(all.squares);
  std::map<int, Norm> norms;
  for (const RankDump& rank : observed.ranks) {
    const std::optional<Norm> own = norm_of(rank);
    if (!own || norm == 0) return {};
    norms[rank.rank] = *own;
  }
  const auto is_norm = [&](const Norm& own) {
    const double slack = std::max(kLeast, 8 * unit_roundoff(own.dtype));
    return std::abs(std::sqrt(own.squares) - norm) <= slack * norm;
  };
  if (std::ranges::all_of(norms, [&](const auto& own) {
        return own.second.elements < all.elements && is_norm(own.second);
      }))
    return fmt::format(
        "What each rank holds has the norm {}, which all gradients have in the reference: it is "
        "multiplied by that norm over the norm of what the rank holds, as where each rank clips by "
        "the norm of its own.",
        number_text(norm, 4));
  if (!have_one_factor(results)) return {};
  for (const auto& [name, groups] : groups_of_ranks(observed))
    if (std::ranges::all_of(groups, [&](const std::vector<int>& ranks) {
          Norm sum;
          for (const int rank : ranks) sum.add(norms.at(rank));
          return ranks.size() > 1 && sum.elements > all.elements && is_norm(sum);
        }))
      return fmt::format(
          "Over {}, with what several hold counted once a rank, the gradients have the norm {}, "
          "which they have in the reference without: all are multiplied by the latter norm over "
          "the former, as where clipping counts copies once a rank.",
          name, number_text(norm, 4));
  return {};
}

}  // namespace distgrad::dumps
