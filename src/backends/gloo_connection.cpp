#include "backends/gloo_connection.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "backends/gloo.h"

namespace distgrad {

c10d::ReduceOp torch_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg: return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kPremulSum: return c10d::ReduceOp::PREMUL_SUM;
  }
  TORCH_CHECK(false, "no such reduction");
}

namespace {

class GlooConnection : public Connection {
 public:
  GlooConnection(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& name,
                 const GlooTraits& traits)
      : Connection(rank, size), traits_(traits), store_(std::move(store)), name_(name) {
    backend_ = connect_gloo(store_, rank, size);
  }

  c10d::ProcessGroup& process_group() override {
    if (!group_) {
      group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
      group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend_);
      group_->setGroupName(name_);
    }
    return *group_;
  }

 protected:
  bool offers_all_reduce(ReduceOp op, at::ScalarType dtype) const override {
    return offers("all_reduce", op, dtype);
  }
  bool offers_reduce(ReduceOp op, at::ScalarType dtype) const override { return offers("reduce", op, dtype); }
  bool offers_all_to_all() const override { return traits_.offers("all_to_all"); }

  void native_all_reduce(at::Tensor& x, ReduceOp op) override {
    std::vector<at::Tensor> tensors{x};
    c10d::AllreduceOptions options;
    options.reduceOp = torch_op(op);
    backend_->allreduce(tensors, options)->wait();
  }
  void native_reduce(at::Tensor& x, ReduceOp op, int root) override {
    std::vector<at::Tensor> tensors{x};
    c10d::ReduceOptions options;
    options.reduceOp = torch_op(op);
    options.rootRank = root;
    backend_->reduce(tensors, options)->wait();
  }
  void native_broadcast(at::Tensor& x, int root) override {
    std::vector<at::Tensor> tensors{x};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    backend_->broadcast(tensors, options)->wait();
  }
  void native_all_gather(at::Tensor& out, const at::Tensor& x) override {
    std::vector<std::vector<at::Tensor>> outs{out.unbind(0)};
    std::vector<at::Tensor> ins{x};
    backend_->allgather(outs, ins)->wait();
  }
  void native_all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<std::int64_t>& out_counts,
                         const std::vector<std::int64_t>& in_counts) override {
    at::Tensor source = in;
    std::vector<std::int64_t> outs = out_counts, ins = in_counts;
    backend_->alltoall_base(out, source, outs, ins)->wait();
  }

 private:
  bool offers(const char* collective, ReduceOp op, at::ScalarType dtype) const {
    return traits_.offers(std::string(collective) + " " + std::string(name_of(op)) + " " + c10::toString(dtype));
  }

  const GlooTraits& traits_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<Connection> make_gloo_connection(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                 const std::string& name, const GlooTraits& traits) {
  return std::make_unique<GlooConnection>(std::move(store), rank, size, name, traits);
}

}  // namespace distgrad
