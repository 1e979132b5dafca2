#include "model/collective_kind.h"
#include "rank/backends/backend_traits.h"
#include "rank/backends/self_test.h"

namespace distgrad {

// Follows NCCL's device code (src/device/reduce_kernel.h). Sum and product are in the dtype; avg is
// a sum of operands multiplied by 1/N (FuncPreMulSum), or a division at the end; min and max use
// fmin and fmax or the half types' __hmin2 and __hmax2, which drop a NaN. c10d
// (ProcessGroupNCCL.cpp, ncclDataType and ncclOp) has all four dtypes and every op; all_to_all is a
// group of sends and receives.
BackendTraits nccl_traits_by_its_sources() {
  BackendTraits traits;
  traits.torch = torch_version();
  traits.source = "sources";
  for (const char* collective : {"all_reduce", "reduce"})
    for (const char* dtype : {"Double", "Float", "BFloat16", "Half"}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        const std::string name =
            std::string(collective) + " " + std::string(name_of(op)) + " " + dtype;
        const bool loses_nan = op == ReduceOp::kMin || op == ReduceOp::kMax;
        traits.right[name] = !loses_nan;
        if (loses_nan) traits.why[name] = "loses a NaN";
      }
    }
  traits.right["all_to_all"] = true;
  return traits;
}

}  // namespace distgrad
