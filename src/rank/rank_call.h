// One collective call on a real rank as an autograd node: native, or under a rule that is evaluated jointly.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "collectives/collective.h"
#include "rules/rule.h"

namespace distgrad {

// How a subject runs one collective call.
struct CallSite {
  Call call;
  Connection* connection = nullptr;
  const Rule* rule = nullptr;              // nullptr: the native adjoint
  bool native_leftovers = false;           // diffdist's broadcast: run the backend's reduce, keep what it leaves
  std::function<void()> enter_backward;    // tells where this rank is
};

// The output for this rank. `anchor` is a scalar that requires grad where the call must be differentiated on every rank.
at::Tensor call_on_rank(const std::shared_ptr<CallSite>& site, const at::Tensor& operand, const at::Tensor& anchor);

// The loss, with zero cotangents flowing to `also` as well: so every rank's backward reaches every collective that some rank's
// loss depends on, in the same order.
at::Tensor anchored(const at::Tensor& loss, const std::vector<at::Tensor>& also);

}  // namespace distgrad
