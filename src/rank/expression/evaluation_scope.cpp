#include "rank/expression/evaluation_scope.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <malloc.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace distgrad {
namespace {

thread_local bool evaluating = false;
thread_local at::Device device_of_constructors = at::kCPU;

// Malloc is asked what the process holds, which takes a while, so only each time so much more was
// allocated.
constexpr std::size_t kBytesBetweenChecks = std::size_t{64} << 20;
thread_local std::size_t allocated_since_check = 0;
thread_local std::optional<std::size_t> held_before;  // when the evaluation began

std::size_t held_by_process() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void check_size(std::size_t bytes) {
  TORCH_CHECK(bytes <= kMaxTensorBytes, "a tensor of ", bytes,
              " bytes is too large for an expression; at most ", kMaxTensorBytes);
  allocated_since_check += bytes;
  if (allocated_since_check < kBytesBetweenChecks) return;
  const std::size_t held = held_by_process() + bytes;
  if (!held_before) held_before = held - std::min(held, allocated_since_check);
  TORCH_CHECK(held <= *held_before + kMaxEvaluationBytes, "the expression holds more than ",
              kMaxEvaluationBytes, " bytes");
  allocated_since_check = 0;
}

// Wraps torch's own allocator in a check. It hands out torch's own memory, since some of torch's
// code frees what it allocated through whatever allocator is current then.
class BoundedAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (evaluating) check_size(bytes);
    return inner->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner->raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return inner->is_simple_data_ptr(pointer);
  }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    inner->copy_data(destination, source, bytes);
  }

  c10::Allocator* inner = nullptr;
};

// The allocator is never freed: tensors remember the allocator that made them.
BoundedAllocator& bounded_allocator() {
  static BoundedAllocator* allocator = new BoundedAllocator;
  return *allocator;
}

int nesting = 0;

}  // namespace

at::Device constructor_device() { return device_of_constructors; }

ConstructorDevice::ConstructorDevice(at::Device device)
    : previous_(std::exchange(device_of_constructors, device)) {}
ConstructorDevice::~ConstructorDevice() { device_of_constructors = previous_; }

EvaluationScope::EvaluationScope(at::ScalarType default_dtype)
    : previous_(c10::get_default_dtype()),
      changed_(c10::get_default_dtype_as_scalartype() != default_dtype) {
  if (changed_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype));
  if (nesting++ > 0) return;
  BoundedAllocator& bounded = bounded_allocator();
  bounded.inner = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&bounded);
  allocated_since_check = 0;
  held_before.reset();
  evaluating = true;
}

EvaluationScope::~EvaluationScope() {
  if (changed_) c10::set_default_dtype(previous_);
  if (--nesting > 0) return;
  evaluating = false;
  c10::SetCPUAllocator(bounded_allocator().inner);
}

}  // namespace distgrad
