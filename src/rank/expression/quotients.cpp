#include "rank/expression/quotients.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>

namespace distgrad {
namespace {

std::optional<std::int64_t> smallest(at::ScalarType type) {
  if (type == at::kLong) return INT64_MIN;
  if (type == at::kInt) return INT32_MIN;
  return std::nullopt;  // the processor divides narrower ones as 32 bits
}

}  // namespace

void check_quotients(const torch::jit::Stack& arguments) {
  const bool truncates = arguments.size() > 2 && arguments[2].isString() &&
                         arguments[2].toStringRef() == "trunc" && arguments[0].isTensor();
  if (!truncates) return;
  const at::Tensor dividend = arguments[0].toTensor();
  const at::Tensor divisor = arguments[1].isTensor() ? arguments[1].toTensor()
                                                     : at::scalar_tensor(arguments[1].toScalar());
  const at::ScalarType type = arguments[1].isTensor()
                                  ? at::result_type(dividend, divisor)
                                  : at::result_type(dividend, arguments[1].toScalar());
  const auto least = smallest(type);
  if (!least) return;
  const at::Tensor unfit = (dividend.to(type) == *least).logical_and(divisor.to(type) == -1);
  TORCH_CHECK(!unfit.any().item<bool>(), *least, " / -1 does not fit into ",
              type == at::kLong ? "int64" : "int32");
}

}  // namespace distgrad
