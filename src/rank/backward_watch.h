// Records what a rank sees of one collective call's backward, for the driver's diagnosis
// (ObservedCall). Watching changes nothing: it puts nothing into autograd's graph and holds no
// tensor of it, since one more reference would keep autograd from adding to a gradient in place or
// from taking it over. What arrives is copied before anybody can write to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/run_result.h"

namespace distgrad {

// Knows a tensor's memory without keeping it.
class WatchedMemory {
 public:
  // Returns nothing for a tensor without memory of its own, such as a sparse one.
  static std::optional<WatchedMemory> of(const at::Tensor&);

  // Returns a copy of what the memory holds; undefined if it is gone.
  at::Tensor now() const;
  // Returns the same if it changed since the last look.
  std::optional<Array> written();
  bool holds(const at::Tensor&) const;

 private:
  explicit WatchedMemory(const at::Tensor&);

  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  at::TensorOptions options_;
  std::int64_t offset_;
  Shape sizes_;
  Strides strides_;
  Array held_;
};

class WatchedCall {
 public:
  // Must be made before the call, which may write to its operand.
  WatchedCall(std::string step, const at::Tensor& operand);

  // Whoever runs the call's backward calls these three, in this order.
  void arrives(const at::Tensor& cotangent);  // the output's cotangent; undefined stands for zeros
  void gives(const at::Tensor& gradient);     // the operand's gradient; several are added up;
                                              // undefined: none
  void notice_writes();  // checks whether the cotangent's memory changed since it
                         // arrived

  ObservedCall observed() const;
  const std::string& step() const { return seen_.step; }
  bool has_run() const { return arrivals_ > 0; }
  // Returns true if the backward ran twice, or in parts: what was seen is no answer then.
  bool is_unclear() const { return is_unclear_; }

 private:
  friend void watch_graph(const std::shared_ptr<WatchedCall>&, const at::Tensor&);
  class AtOutput;
  class PassedOn;
  class BeforeNode;
  class BehindNode;

  ObservedCall seen_;
  torch::autograd::Edge operand_;  // until watch_graph
  Shape output_sizes_;
  int arrivals_ = 0;
  bool is_unclear_ = false;
  std::set<std::size_t> ran_;            // nodes of the call, by their places on the way
  std::optional<WatchedMemory> memory_;  // of the cotangent
  bool is_autograds_ = false;            // autograd may add in place to that memory
  at::Tensor given_;                     // a copy
  std::optional<WatchedMemory> first_;   // of the first part of what was given
};

// Watches a call that torch's dispatcher or a user's code made and that returned `output`, by hooks
// on the nodes of the graph that has grown between the operand and it. Other uses of the operand
// are not seen, unless the call returned the operand itself.
void watch_graph(const std::shared_ptr<WatchedCall>& watch, const at::Tensor& output);

// Returns one entry a step, in the order of the calls. Under a checkpoint a step is called more
// than once, and one call's backward runs: that call counts. Returns nothing if any call is
// unclear.
std::vector<ObservedCall> observed_of(const std::vector<std::shared_ptr<WatchedCall>>&);

// Makes the backward of `output` begin so much later, before any other hook sees what arrives.
void delay_backward(const at::Tensor& output, double seconds);

}  // namespace distgrad
