#include "judge/precision_names.h"

#include <algorithm>

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

// Says which dtype rounded. Unless the answers are numbers of a 16-bit dtype, only the size of the
// roundings is known.
std::string how_it_rounds(const ComparedMaps& maps, DType narrow) {
  if (narrow == DType::kFloat32) return "went through float32.";
  if (answers_in(maps, DType::kBFloat16)) return "went through bfloat16.";
  return answers_in(maps, DType::kFloat16) ? "went through float16."
                                           : "rounds as coarsely as float16 or bfloat16 do.";
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
  return how_it_rounds(maps, narrow);
}

}  // namespace distgrad
