// Names of backwards that went through a narrower dtype, for tables of names.
#pragma once

#include <string>

#include "judge/compared_maps.h"

namespace distgrad {

// What a detour over the narrower dtype may do to a gradient whose largest element, or cotangent,
// is `largest`: it rounds each of the ranks' cotangents, and what is made of them before and after.
double room_of_detour(DType narrow, std::size_t ranks, double largest);

// Whether every answer to the joint probes is a number of that dtype: then it was rounded to it
// last.
bool answers_in(const ComparedMaps&, DType narrow);

// What is right but for the rounding of a narrower dtype; empty where it is not.
std::string went_through(const ComparedMaps&, DType narrow);

template <DType narrow>
std::string goes_through(const ComparedMaps& maps) {
  return went_through(maps, narrow);
}

// The same of a backward whose own numbers were rounded, so that even cotangents of few bits are
// not answered rightly: every answer is a number of that dtype, which another mistake's would not
// be.
template <DType narrow>
std::string answers_rounded(const ComparedMaps& maps) {
  return answers_in(maps, narrow) ? went_through(maps, narrow) : "";
}

}  // namespace distgrad
