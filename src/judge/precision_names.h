// Names backwards that went through a narrower dtype, for tables of names.
#pragma once

#include <string>

#include "judge/compared_maps.h"

namespace distgrad {

// Returns how far a detour over the narrower dtype may move a gradient whose largest element, or
// cotangent, is `largest`. It rounds each rank's cotangent, and the results before and after.
double room_of_detour(DType narrow, std::size_t ranks, double largest);

// Returns true if every answer to the joint probes is a number of that dtype: it was rounded last.
bool answers_in(const ComparedMaps&, DType narrow);

// Describes a backward that is right except for rounding to a narrower dtype, else returns "".
std::string went_through(const ComparedMaps&, DType narrow);

template <DType narrow>
std::string goes_through(const ComparedMaps& maps) {
  return went_through(maps, narrow);
}

// Does the same for a backward that rounded its own numbers, so that even cotangents of few bits
// get wrong answers. It asks that every answer is a number of that dtype, unlike another mistake's.
template <DType narrow>
std::string answers_rounded(const ComparedMaps& maps) {
  return answers_in(maps, narrow) ? went_through(maps, narrow) : "";
}

}  // namespace distgrad
