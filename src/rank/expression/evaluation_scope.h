// Sets what holds while an expression is evaluated: torch's default dtype is the case's, and memory
// is bounded.
#pragma once

#include <c10/core/DefaultDtype.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>

namespace distgrad {

// Bound one tensor of an expression, and all memory of one evaluation. They are far above what a
// scenario needs and below what would take a machine down, so torch.zeros(10**12) is an error and
// does not end the process.
inline constexpr std::size_t kMaxTensorBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxEvaluationBytes = std::size_t{4} << 30;

// Returns where this thread's torch.zeros, torch.tensor and other constructors of expressions put
// their tensors, as Python's torch.device() does as a context. The default is the CPU.
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
