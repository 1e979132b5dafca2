#include "dumps/clipping.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "base/number_text.h"

namespace distgrad::dumps {
namespace {

constexpr double kLeast = 1e-4;  // relative, of norms: more than rounding, except in short dtypes

struct Norm {
  double squares = 0;
  std::int64_t elements = 0;
  DType dtype = DType::kFloat64;
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
    norm.squares += sum_of_squares(whole_stream(own));
    norm.elements += own.size();
    if (unit_roundoff(own.dtype) > unit_roundoff(norm.dtype)) norm.dtype = own.dtype;
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
std::vector<std::pair<std::string, std::vector<std::vector<std::size_t>>>> groups_of_ranks(
    const Dump& observed) {
  std::vector<std::pair<std::string, std::vector<std::vector<std::size_t>>>> found;
  std::vector<std::size_t> all(observed.ranks.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  found.push_back({"all ranks", {all}});
  const DumpMesh* mesh = observed.mesh();
  if (!mesh) return found;
  std::size_t stride = all.size();
  for (const DumpAxis& axis : mesh->axes) {
    const auto size = static_cast<std::size_t>(axis.size);
    if (size == 0 || stride % size != 0) return {found.front()};
    const std::size_t outer = stride;
    stride /= size;
    std::map<std::size_t, std::vector<std::size_t>> groups;
    for (const std::size_t r : all) groups[r / outer * outer + r % stride].push_back(r);
    found.push_back({"the ranks of " + axis.name, {}});
    for (auto& [first, ranks] : groups) found.back().second.push_back(std::move(ranks));
  }
  return found;
}

}  // namespace

std::string clipped_by_other_norm(Holders& reference, const Dump& observed,
                                  const Tolerance& tolerance,
                                  const std::vector<ParameterResult>& results) {
  if (observed.ranks.size() < 2 || !are_multiples(results)) return {};
  const auto whole = whole_gradients(reference, observed, tolerance);
  if (!whole) return {};
  double squares = 0;
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : *whole) {
    squares += sum_of_squares(whole_stream(tensor));
    elements += tensor.size();
  }
  const double norm = std::sqrt(squares);
  std::vector<Norm> norms;
  for (const RankDump& rank : observed.ranks) {
    const std::optional<Norm> own = norm_of(rank);
    if (!own || norm == 0) return {};
    norms.push_back(*own);
  }
  const auto is_norm = [&](double own_squares, DType dtype) {
    const double slack = std::max(kLeast, 8 * unit_roundoff(dtype));
    return std::abs(std::sqrt(own_squares) - norm) <= slack * norm;
  };
  if (std::all_of(norms.begin(), norms.end(), [&](const Norm& own) {
        return own.elements < elements && is_norm(own.squares, own.dtype);
      }))
    return fmt::format(
        "What each rank holds has the norm {}, which all gradients have in the reference: it is "
        "multiplied by that norm over the norm of what the rank holds, as where each rank clips by "
        "the norm of its own.",
        number_text(norm, 4));
  if (!have_one_factor(results)) return {};
  for (const auto& [name, groups] : groups_of_ranks(observed))
    if (std::all_of(groups.begin(), groups.end(), [&](const std::vector<std::size_t>& ranks) {
          Norm sum;
          for (const std::size_t r : ranks) {
            sum.squares += norms[r].squares;
            sum.elements += norms[r].elements;
            if (unit_roundoff(norms[r].dtype) > unit_roundoff(sum.dtype))
              sum.dtype = norms[r].dtype;
          }
          return ranks.size() > 1 && sum.elements > elements && is_norm(sum.squares, sum.dtype);
        }))
      return fmt::format(
          "Over {}, with what several hold counted once a rank, the gradients have the norm {}, "
          "which they have in the reference without: all are multiplied by the latter norm over "
          "the former, as where clipping counts copies once a rank.",
          name, number_text(norm, 4));
  return {};
}

}  // namespace distgrad::dumps
