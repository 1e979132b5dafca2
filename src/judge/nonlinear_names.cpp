// These name backwards that are not linear.
#include "judge/names.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "judge/closeness.h"
#include "judge/precision_names.h"

namespace distgrad {
namespace {

bool is_joint_response(const ComparedMaps& maps, ReduceOp op) {
  for (std::size_t k = maps.m.first_joint(); k < maps.m.cotangents.size(); ++k)
    for (const auto& ranks : maps.m.partition)
      for (const int r : ranks) {
        const auto rank = static_cast<std::size_t>(r);
        std::vector<double> wanted = maps.m.cotangents[k][static_cast<std::size_t>(ranks[0])];
        if (wanted.size() != maps.m.measured.values[k][rank].size()) return false;
        double scale = largest_magnitude(wanted);
        for (std::size_t i = 1; i < ranks.size(); ++i) {
          const std::vector<double>& next =
              maps.m.cotangents[k][static_cast<std::size_t>(ranks[i])];
          for (std::size_t e = 0; e < wanted.size(); ++e)
            wanted[e] = op == ReduceOp::kProduct
                            ? rounded_to(maps.m.program->dtype, wanted[e] * next[e])
                        : op == ReduceOp::kMax ? std::max(wanted[e], next[e])
                                               : std::min(wanted[e], next[e]);
          scale = std::max(scale, largest_magnitude(wanted));
        }
        const double room =
            resolution(maps.m, k, rank) + 16 * unit_roundoff(maps.m.program->dtype) * scale;
        if (!difference(maps.m.measured.values[k][rank], wanted, [&](std::size_t) {
               return room;
             }).equal)
          return false;
      }
  return true;
}

std::string applies_same_op(const ComparedMaps& maps) {
  if (!traits(maps.m.call().kind).takes_op || !traits(maps.m.call().kind).keeps_shape()) return "";
  if (!picks(maps) && !is_of(maps, ReduceOp::kProduct)) return "";
  return is_joint_response(maps, maps.m.call().op)
             ? "applied the collective's own reduction to the cotangents."
             : "";
}

std::string is_not_linear(const ComparedMaps& maps) {
  return "is not linear in the cotangents, as every right one is: " + maps.m.shown + ".";
}

constexpr std::array kNonlinear = std::to_array<WrongBackward>({
    {"same-op-backward", applies_same_op, "", "", help_with("same-op-backward")},
    {"precision", goes_through<DType::kFloat32>, "", "", help_with("precision")},
    {"precision", goes_through<DType::kFloat16>, "", "", help_with("precision")},
    {"precision", goes_through<DType::kBFloat16>, "", "", help_with("precision")},
    {"other-backward", is_not_linear, "", "",
     "Look for abs, max, a clip, a comparison, a rounding or a normalisation in that backward."},
});

}  // namespace

std::span<const WrongBackward> nonlinear_names() { return kNonlinear; }

}  // namespace distgrad
