// Records what a rank sees of one collective call's backward, for the driver's diagnosis
// (ObservedCall). Watching changes nothing: it puts nothing into autograd's graph and holds no
// tensor of it, since one more reference would keep autograd from adding to a gradient in place or
// from taking it over. What arrives is copied before anybody can write to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "model/run_result.h"

namespace distgrad {

class WatchedCall {
 public:
  // Must be made before the call, which may write to its operand.
  WatchedCall(std::string step, const at::Tensor& operand);

  // Whoever runs the call's backward calls these three, in this order.
  void arrives(const at::Tensor& cotangent);  // the output's cotangent; undefined: none arrives
  void gives(const at::Tensor& gradient);     // the operand's gradient; several are added up;
                                              // undefined: none
  void notice_writes();  // checks whether the cotangent's memory changed since it
                         // arrived

  ObservedCall observed() const;

 private:
  struct Place;  // a cotangent's place in memory

  ObservedCall seen_;
  std::shared_ptr<const Place> place_;
  at::Tensor given_;  // a copy
};

// Watches a call that torch's dispatcher or a library made, by hooks on the nodes of the graph that
// has grown between `operand` and `output`. Other uses of the operand are not seen, unless the call
// returned the operand itself.
void watch_graph(const std::shared_ptr<WatchedCall>& watch, const at::Tensor& operand,
                 const at::Tensor& output);

}  // namespace distgrad
