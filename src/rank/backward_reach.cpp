#include "rank/backward_reach.h"

#include <algorithm>

#include "rank/input_values.h"

namespace distgrad {
namespace {

// Looks at the first element without torch's operators, since it nearly always decides.
bool has_any(const at::Tensor& cotangent) {
  if (!cotangent.defined() || cotangent.numel() == 0) return false;
  if (cotangent.scalar_type() == at::kDouble && *cotangent.const_data_ptr<double>() != 0)
    return true;
  const Array all = array_of(cotangent);
  return std::any_of(all.values().begin(), all.values().end(), [](double x) { return x != 0; });
}

}  // namespace

void BackwardReach::watch(const std::vector<at::Tensor>& outputs) {
  watches_ = true;
  for (const at::Tensor& x : outputs)
    if (x.requires_grad())
      x.register_hook([this](const at::Tensor& cotangent) {
        if (counts_ && !is_somewhere_) is_somewhere_ = has_any(cotangent);
      });
}

}  // namespace distgrad
