#include "expression/evaluation_scope.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>

namespace distgrad {
namespace {

// Bytes that this thread's evaluation may still allocate; unlimited outside of one.
constexpr std::size_t kUnlimited = SIZE_MAX;
thread_local std::size_t budget = kUnlimited;

// Torch's own allocator behind a check. Lives for ever: tensors remember the allocator that made them.
class BoundedAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (budget != kUnlimited) {
      TORCH_CHECK(bytes <= kMaxTensorBytes, "a tensor of ", bytes, " bytes is too large for an expression; at most ",
                  kMaxTensorBytes);
      TORCH_CHECK(bytes <= budget, "the expression allocates more than ", kMaxEvaluationBytes, " bytes");
      budget -= bytes;
    }
    return inner->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner->raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override { return inner->is_simple_data_ptr(pointer); }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    inner->copy_data(destination, source, bytes);
  }

  c10::Allocator* inner = nullptr;
};

BoundedAllocator& bounded_allocator() {
  static BoundedAllocator* allocator = new BoundedAllocator;
  return *allocator;
}

int nesting = 0;

}  // namespace

EvaluationScope::EvaluationScope(at::ScalarType default_dtype)
    : previous_(c10::get_default_dtype()), changed_(c10::get_default_dtype_as_scalartype() != default_dtype) {
  if (changed_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype));
  if (nesting++ > 0) return;
  BoundedAllocator& bounded = bounded_allocator();
  bounded.inner = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&bounded);
  budget = kMaxEvaluationBytes;
}

EvaluationScope::~EvaluationScope() {
  if (changed_) c10::set_default_dtype(previous_);
  if (--nesting > 0) return;
  budget = kUnlimited;
  c10::SetCPUAllocator(bounded_allocator().inner);
}

}  // namespace distgrad
