#include "dumps/clipping.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/number_text.h"

namespace distgrad::dumps {
namespace {

constexpr double kLeast = 1e-4;  // relative: of norms, what is no rounding but in short dtypes

struct Norm {
  double squares = 0;
  bool has_piece = false;  // less than the whole of some parameter
  DType dtype = DType::kFloat64;
};

// Of the whole gradients, by name; absent where they are not known.
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

std::optional<Norm> norm_of(const RankDump& rank, const std::map<std::string, DumpTensor>& whole) {
  Norm norm;
  for (const auto& [name, gradient] : rank.gradients) {
    if (!gradient.tensor) continue;
    if (gradient.layout)
      for (const DumpPlacement& placement : gradient.layout->placements)
        if (placement.kind == DumpPlacement::Kind::kPartial) return std::nullopt;
    const auto truth = whole.find(name);
    const DumpTensor& own = *gradient.tensor;
    norm.squares += sum_of_squares(whole_stream(own));
    if (unit_roundoff(own.dtype) > unit_roundoff(norm.dtype)) norm.dtype = own.dtype;
    norm.has_piece = norm.has_piece || (truth != whole.end() && own.size() < truth->second.size());
  }
  return norm;
}

}  // namespace

std::string clipped_by_own(Holders& reference, const Dump& observed, const Tolerance& tolerance) {
  if (observed.ranks.size() < 2) return {};
  const auto whole = whole_gradients(reference, observed, tolerance);
  if (!whole) return {};
  double squares = 0;
  for (const auto& [name, tensor] : *whole) squares += sum_of_squares(whole_stream(tensor));
  const double norm = std::sqrt(squares);
  for (const RankDump& rank : observed.ranks) {
    const std::optional<Norm> own = norm_of(rank, *whole);
    if (!own || !own->has_piece || norm == 0) return {};
    const double slack = std::max(kLeast, 8 * unit_roundoff(own->dtype));
    if (!(std::abs(std::sqrt(own->squares) - norm) <= slack * norm)) return {};
  }
  return fmt::format(
      "Each rank's own pieces have the norm {}, which all of them have in the reference: each rank "
      "clips by the norm of its own pieces, and not by that of all.",
      number_text(norm, 4));
}

}  // namespace distgrad::dumps
