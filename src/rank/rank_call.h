// One collective call on a real rank as an autograd node: forward native, backward as the subject
// has it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "rank/backward_watch.h"
#include "rules/rule.h"

namespace distgrad {

struct CallSite;

// From the own output's cotangent to the own operand's, exchanging what it needs; undefined: no
// gradient.
using Backward = std::function<at::Tensor(const CallSite&, const SavedForBackward&,
                                          const at::Tensor& cotangent)>;

// How a subject runs one collective call.
struct CallSite {
  Call call;
  Connection* connection = nullptr;
  Backward backward;
  std::function<void()> enter_backward;  // tells where this rank is
  std::shared_ptr<WatchedCall> watch;    // null: nobody looks
  bool keeps_values = true;              // until backward, and not only the operand's shape

  // Of a mutant: the operand of another call gets, instead of its own gradient, what this one's
  // gets.
  struct Loan {
    Shape shape;
    std::shared_ptr<WatchedCall> watch;  // of the other call
  };
  std::optional<Loan> lends = {};
};

// Whether native_backward() wants the operand's values.
bool wants_values(const CollectiveCall&);
at::Tensor native_backward(const CallSite&, const SavedForBackward&, const at::Tensor& cotangent);
// diffdist's broadcast: the backend's reduce, and what it leaves.
at::Tensor partial_sums_backward(const CallSite&, const SavedForBackward&,
                                 const at::Tensor& cotangent);
// Gathers what the joint function wants of all ranks, evaluates it, keeps the own row.
using JointFunction = std::function<std::vector<at::Tensor>(const Call&, const JointValues&)>;
Backward joint_backward(JointFunction);
Backward rule_backward(const Rule&);

// The output for this rank. `anchor` is a scalar that requires grad where the call must be
// differentiated on every rank.
at::Tensor call_on_rank(const std::shared_ptr<CallSite>& site, const at::Tensor& operand,
                        const at::Tensor& anchor);

// Makes that loan: `borrower` is about to be called with `operand`, `output` is the lender's. Where
// `operand` wants no gradient on this rank there is nothing to lend. Throws c10::Error where it has
// other elements, or comes after the lender's call.
void lend_gradient(CallSite& lender, const at::Tensor& output, CallSite& borrower,
                   const at::Tensor& operand);

// The loss, with zero cotangents flowing to `also` as well: so every rank's backward reaches every
// collective that some rank's loss depends on, in the same order.
at::Tensor anchored(const at::Tensor& loss, const std::vector<at::Tensor>& also);

}  // namespace distgrad
