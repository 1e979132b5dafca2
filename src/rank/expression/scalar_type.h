// Converts a dtype to torch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "model/dtype.h"

namespace distgrad {

inline at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
  }
  return at::kDouble;
}

}  // namespace distgrad
