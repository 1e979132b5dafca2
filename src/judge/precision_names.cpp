#include "judge/precision_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "judge/closeness.h"

namespace distgrad {

double room_of_detour(DType narrow, std::size_t ranks, double largest) {
  return (2 + static_cast<double>(ranks)) * unit_roundoff(narrow) * largest;
}

bool answers_in(const ComparedMaps& maps, DType narrow) {
  for (std::size_t k = maps.m.first_joint(); k < maps.m.cotangents.size(); ++k)
    for (const auto& values : maps.m.measured.values[k])
      for (const double v : values)
        if (rounded_to(narrow, v) != v) return false;
  return true;
}

namespace {

// Names the dtype. Which of the two 16-bit dtypes rounded is unknown unless the answer shows it.
std::string_view name_of_narrow(const ComparedMaps& maps, DType narrow) {
  if (narrow == DType::kFloat32) return "float32";
  if (answers_in(maps, DType::kBFloat16)) return "bfloat16";
  return answers_in(maps, DType::kFloat16) ? "float16" : "float16 or bfloat16";
}

}  // namespace

std::string went_through(const ComparedMaps& maps, DType narrow) {
  if (unit_roundoff(narrow) <= unit_roundoff(maps.m.program->dtype)) return "";
  for (std::size_t k = 0; k < maps.m.cotangents.size(); ++k) {
    double scale = 0;
    for (const auto& values : maps.m.right.values[k])
      scale = std::max(scale, largest_magnitude(values));
    for (const auto& values : maps.m.cotangents[k])
      scale = std::max(scale, largest_magnitude(values));
    for (std::size_t r = 0; r < maps.m.world_size(); ++r) {
      const double room =
          resolution(maps.m, k, r) + room_of_detour(narrow, maps.m.world_size(), scale);
      if (!difference(maps.m.measured.values[k][r], maps.m.right.values[k][r], [&](std::size_t) {
             return room;
           }).equal)
        return "";
    }
  }
  return fmt::format("went through {}.", name_of_narrow(maps, narrow));
}

}  // namespace distgrad
