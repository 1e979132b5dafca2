// Runs one collective call on a real rank as an autograd node: a native forward with the subject's
// backward.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rank/backward_watch.h"
#include "rank/collectives/collective.h"
#include "rank/rules/rule.h"

namespace distgrad {

struct CallSite;

// Maps this rank's output cotangent to its operand's cotangent, and exchanges what it needs with
// other ranks. An undefined tensor means no gradient.
using Backward = std::function<at::Tensor(const CallSite&, const SavedForBackward&,
                                          const at::Tensor& cotangent)>;

// Says how a subject runs one collective call.
struct CallSite {
  Call call;
  Connection* connection = nullptr;
  Backward backward;
  std::function<void()> enter_backward;  // notes where this rank is
  std::shared_ptr<WatchedCall> watch;    // null: nobody watches
  bool keeps_values = true;              // until backward; false: only the operand's shape is kept

  // In a mutant, the operand of another call gets this call's gradient instead of its own.
  struct Loan {
    Shape shape;
    std::shared_ptr<WatchedCall> watch;  // of the other call
  };
  std::optional<Loan> lends = {};
};

// Returns whether native_backward() needs the operand's values.
bool wants_values(const CollectiveCall&);
at::Tensor native_backward(const CallSite&, const SavedForBackward&, const at::Tensor& cotangent);
// Implements diffdist's backward of broadcast: the backend's reduce, with what it leaves off the
// root.
at::Tensor partial_sums_backward(const CallSite&, const SavedForBackward&,
                                 const at::Tensor& cotangent);
// Gathers what the joint function needs from all ranks, evaluates it and keeps this rank's row.
using JointFunction = std::function<std::vector<at::Tensor>(const Call&, const JointValues&)>;
Backward joint_backward(JointFunction);
Backward rule_backward(const Rule&);

// Returns this rank's output. `anchor` is a scalar that requires grad if the call must be
// differentiated on every rank.
at::Tensor call_on_rank(const std::shared_ptr<CallSite>& site, const at::Tensor& operand,
                        const at::Tensor& anchor);

// Makes that loan: `borrower` is about to be called with `operand`; `output` is the lender's. Does
// nothing if `operand` needs no gradient on this rank. Throws c10::Error if `operand` has another
// number of elements or comes after the lender's call.
void lend_gradient(CallSite& lender, const at::Tensor& output, CallSite& borrower,
                   const at::Tensor& operand);

// Returns the loss, with zero cotangents flowing to `also` as well. So every rank's backward
// reaches every collective that some rank's loss depends on, in the same order.
at::Tensor anchored(const at::Tensor& loss, const std::vector<at::Tensor>& also);

// Returns the squared norm of the gradients of all ranks' losses, through the collectives, with
// respect to this rank's `leaves`. `reached` are the values that every rank's backward must reach.
at::Tensor squared_gradient_norm(const at::Tensor& loss, const std::vector<at::Tensor>& reached,
                                 const std::vector<at::Tensor>& leaves);

}  // namespace distgrad
