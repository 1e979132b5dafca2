// Represents one rank's end of one group: the exchanges that collectives are made of. A backend
// implements the primitives it has; this class composes and notes what it lacks or gets wrong.  All
// ranks of the group must make the same calls in the same order. Tensors may be non-contiguous;
// results are fresh, contiguous and outside the autograd graph. Calls block until done. They throw
// c10::Error (or what the backend throws) if a peer is gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "model/array.h"
#include "model/collective_kind.h"

namespace c10d {
class ProcessGroup;
}

namespace distgrad {

class Connection {
 public:
  // Takes and returns tensors on `device` only.
  Connection(int rank, int size, at::Device device = at::kCPU)
      : rank_(rank), size_(size), device_(device) {}
  virtual ~Connection() = default;

  int rank() const { return rank_; }  // in the group
  int size() const { return size_; }
  at::Device device() const { return device_; }

  // Reduces over the group, with every op but premul_sum. All ranks must pass the same shape.
  at::Tensor all_reduce(const at::Tensor& x, ReduceOp op);
  // Returns the reduction on root, undefined values elsewhere. All ranks must pass the same shape.
  at::Tensor reduce(const at::Tensor& x, ReduceOp op, int root);
  // Returns root's tensor. Elsewhere `x` gives shape and dtype.
  at::Tensor broadcast(const at::Tensor& x, int root);
  // Returns all tensors by rank. All ranks must pass the same shape.
  std::vector<at::Tensor> all_gather(const at::Tensor& x);
  // Returns all tensors by rank. Shapes may differ, which costs one more exchange.
  std::vector<at::Tensor> all_gather_uneven(const at::Tensor& x);
  std::vector<Shape> all_gather_shapes(const at::Tensor& x);
  // Returns the numbers by rank, as many from each. They begin and end in the host's memory.
  std::vector<std::vector<std::int64_t>> all_gather_numbers(const std::vector<std::int64_t>& own);
  // Sends chunks[i] to rank i. Returns what came from each rank, whose shapes the caller knows.
  std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& chunks,
                                     const std::vector<Shape>& received);

  // Serves subjects that go through torch's dispatcher, as Python's torch.distributed does.
  virtual c10d::ProcessGroup& process_group() = 0;

  // Makes its own exchanges go that way, too, so that watchers of torch's dispatcher see them.
  void call_through_group(bool does) { calls_through_group_ = does; }

  // Returns what was composed since the last call, e.g. "all_reduce max (composed of all_gather)".
  std::set<std::string> take_composed();

 protected:
  virtual bool offers_all_reduce(ReduceOp op, at::ScalarType dtype) const = 0;
  virtual bool offers_reduce(ReduceOp op, at::ScalarType dtype) const = 0;
  virtual bool offers_all_to_all() const = 0;
  // Tensors are contiguous, never empty, and reduced in place.
  virtual void native_all_reduce(at::Tensor& x, ReduceOp op) = 0;
  virtual void native_reduce(at::Tensor& x, ReduceOp op, int root) = 0;
  virtual void native_broadcast(at::Tensor& x, int root) = 0;
  // `out` has the shape [size, ...x's shape].
  virtual void native_all_gather(at::Tensor& out, const at::Tensor& x) = 0;
  // Buffers are flat; counts are in elements, by rank.
  virtual void native_all_to_all(at::Tensor& out, const at::Tensor& in,
                                 const std::vector<std::int64_t>& out_counts,
                                 const std::vector<std::int64_t>& in_counts) = 0;

  bool calls_through_group() const { return calls_through_group_; }
  void note_composed(const std::string& what) { composed_.insert(what); }

 private:
  int rank_;
  int size_;
  at::Device device_;
  bool calls_through_group_ = false;
  std::set<std::string> composed_;
};

// Reduces equally shaped tensors in rank order, in their own dtype. NaN propagates through min and
// max.
at::Tensor reduced(const std::vector<at::Tensor>& by_rank, ReduceOp op);

}  // namespace distgrad
