// What holds while an expression is evaluated: torch's default dtype is the case's, and memory is
// bounded.
#pragma once

#include <c10/core/DefaultDtype.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>

namespace distgrad {

// One tensor of an expression, and what one evaluation may hold at a time. Far above what a
// scenario needs, below what would take a machine down: torch.zeros(10**12) is an error and not the
// end of the process.
inline constexpr std::size_t kMaxTensorBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxEvaluationBytes = std::size_t{4} << 30;

// Where torch.zeros, torch.tensor and the other constructors of expressions put their tensors, as
// Python's torch.device() as a context does. One thread's; the CPU where nothing is said.
at::Device constructor_device();

class ConstructorDevice {
 public:
  explicit ConstructorDevice(at::Device device);
  ~ConstructorDevice();
  ConstructorDevice(const ConstructorDevice&) = delete;
  ConstructorDevice& operator=(const ConstructorDevice&) = delete;

 private:
  at::Device previous_;
};

class EvaluationScope {
 public:
  explicit EvaluationScope(at::ScalarType default_dtype);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  caffe2::TypeMeta previous_;
  bool changed_;
};

}  // namespace distgrad
