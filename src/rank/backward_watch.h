// What a rank sees of one collective call's backward, for the driver's diagnosis (ObservedCall).
// Seeing it changes nothing: nothing is put into autograd's graph and no tensor of it is held,
// since a reference more would keep autograd from adding to a gradient in place, or from taking it
// over. What arrives is copied before anybody can write to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "model/run_result.h"

namespace distgrad {

class WatchedCall {
 public:
  // Before the call, which may write to its operand.
  WatchedCall(std::string step, const at::Tensor& operand);

  // The call's backward, in this order, from whoever runs it.
  void arrives(const at::Tensor& cotangent);  // at the output; undefined: nothing does
  void gives(const at::Tensor& gradient);  // to the operand; what is given several times is added
                                           // up; undefined: nothing
  void notice_writes();                    // has the cotangent's memory changed since it arrived?

  ObservedCall observed() const;

 private:
  struct Place;  // of a cotangent in memory

  ObservedCall seen_;
  std::shared_ptr<const Place> place_;
  at::Tensor given_;  // a copy
};

// Watches a call that torch's dispatcher or a library made, by hooks on the nodes of the graph that
// has grown between `operand` and `output`. What else uses the operand is not seen, unless the call
// returned the operand itself.
void watch_graph(const std::shared_ptr<WatchedCall>& watch, const at::Tensor& operand,
                 const at::Tensor& output);

}  // namespace distgrad
