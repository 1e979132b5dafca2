#include "diagnose/precision_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "gradients/closeness.h"

namespace distgrad {

double room_of_detour(DType narrow, std::size_t ranks, double largest) {
  return (2 + static_cast<double>(ranks)) * unit_roundoff(narrow) * largest;
}

bool answers_in(const Look& look, DType narrow) {
  for (std::size_t k = look.m.first_joint(); k < look.m.cotangents.size(); ++k)
    for (const auto& values : look.m.measured.values[k])
      for (const double v : values)
        if (rounded_to(narrow, v) != v) return false;
  return true;
}

namespace {

// How often either of the two of sixteen bits rounded on the way nobody knows, unless the answer
// shows it.
std::string_view name_of_narrow(const Look& look, DType narrow) {
  if (narrow == DType::kFloat32) return "float32";
  if (answers_in(look, DType::kBFloat16)) return "bfloat16";
  return answers_in(look, DType::kFloat16) ? "float16" : "float16 or bfloat16";
}

}  // namespace

std::string went_through(const Look& look, DType narrow) {
  if (unit_roundoff(narrow) <= unit_roundoff(look.m.program->dtype)) return "";
  for (std::size_t k = 0; k < look.m.cotangents.size(); ++k) {
    double scale = 0;
    for (const auto& values : look.m.right.values[k])
      scale = std::max(scale, largest_magnitude(values));
    for (const auto& values : look.m.cotangents[k])
      scale = std::max(scale, largest_magnitude(values));
    for (std::size_t r = 0; r < look.m.world_size(); ++r) {
      const double room =
          resolution(look.m, k, r) + room_of_detour(narrow, look.m.world_size(), scale);
      if (!difference(look.m.measured.values[k][r], look.m.right.values[k][r], [&](std::size_t) {
             return room;
           }).equal)
        return "";
    }
  }
  return fmt::format("went through {}.", name_of_narrow(look, narrow));
}

}  // namespace distgrad
