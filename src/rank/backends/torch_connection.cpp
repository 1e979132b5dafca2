#include "rank/backends/torch_connection.h"

#include <ATen/ATen.h>

#include <chrono>
#include <thread>

namespace distgrad {

c10d::ReduceOp torch_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kPremulSum:
      break;  // the call has its factor
  }
  TORCH_CHECK(false, "no such reduction");
}

namespace {

class TorchConnection : public Connection {
 public:
  TorchConnection(TorchEnd end, const BackendTraits& traits)
      : Connection(end.rank, end.size, end.device), end_(std::move(end)), traits_(traits) {}

  // Takes communicators on GPUs down in order, so that no peer loses what is still on its way.
  // After a failure it aborts at once, since it would wait for a group that is out of step.
  ~TorchConnection() override {
    if (end_.device.is_cpu()) return;
    try {
      if (failed_)
        end_.backend->abort();
      else
        end_.backend->shutdown();
    } catch (const std::exception&) {  // nobody is left to be told
    }
  }

  c10d::ProcessGroup& process_group() override {
    if (!group_) {
      group_ = c10::make_intrusive<c10d::ProcessGroup>(end_.store, end_.rank, end_.size);
      group_->setBackend(end_.device.type(), end_.type, end_.backend);
      group_->setGroupName(end_.name);
    }
    return *group_;
  }

 protected:
  bool offers_all_reduce(ReduceOp op, at::ScalarType dtype) const override {
    return offers("all_reduce", op, dtype);
  }
  bool offers_reduce(ReduceOp op, at::ScalarType dtype) const override {
    return offers("reduce", op, dtype);
  }
  bool offers_all_to_all() const override { return traits_.offers("all_to_all"); }

  void native_all_reduce(at::Tensor& x, ReduceOp op) override {
    std::vector<at::Tensor> tensors{x};
    c10d::AllreduceOptions options;
    options.reduceOp = torch_op(op);
    carry_out([&](auto& group) { return group.allreduce(tensors, options); });
  }
  void native_reduce(at::Tensor& x, ReduceOp op, int root) override {
    std::vector<at::Tensor> tensors{x};
    c10d::ReduceOptions options;
    options.reduceOp = torch_op(op);
    options.rootRank = root;
    carry_out([&](auto& group) { return group.reduce(tensors, options); });
  }
  void native_broadcast(at::Tensor& x, int root) override {
    std::vector<at::Tensor> tensors{x};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    carry_out([&](auto& group) { return group.broadcast(tensors, options); });
  }
  void native_all_gather(at::Tensor& out, const at::Tensor& x) override {
    std::vector<std::vector<at::Tensor>> outs{out.unbind(0)};
    std::vector<at::Tensor> ins{x};
    carry_out([&](auto& group) { return group.allgather(outs, ins); });
  }
  void native_all_to_all(at::Tensor& out, const at::Tensor& in,
                         const std::vector<std::int64_t>& out_counts,
                         const std::vector<std::int64_t>& in_counts) override {
    at::Tensor source = in;
    std::vector<std::int64_t> outs = out_counts, ins = in_counts;
    carry_out([&](auto& group) { return group.alltoall_base(out, source, outs, ins); });
  }

 private:
  // Polls on a GPU. wait() alone would only line the collective up with the stream, so an NCCL
  // error or a missing peer would look like a hang of whatever reads the result. isCompleted()
  // looks for those, and wait() then throws what it found.
  template <class Start>
  void carry_out(Start start) {
    // Takes about as long as a small collective; sleeping takes longer.
    constexpr int kSpins = 2000;
    constexpr auto kSleep = std::chrono::microseconds(100);
    failed_ = true;
    const c10::intrusive_ptr<c10d::Work> work =
        calls_through_group() ? start(process_group()) : start(*end_.backend);
    if (!end_.device.is_cpu())
      for (int i = 0; !work->isCompleted(); ++i)
        if (i >= kSpins) std::this_thread::sleep_for(kSleep);
    work->wait();
    failed_ = false;
  }

  bool offers(const char* collective, ReduceOp op, at::ScalarType dtype) const {
    return traits_.offers(std::string(collective) + " " + std::string(name_of(op)) + " " +
                          c10::toString(dtype));
  }

  TorchEnd end_;
  const BackendTraits& traits_;
  bool failed_ = false;  // the last collective did not complete
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<Connection> make_torch_connection(TorchEnd end, const BackendTraits& traits) {
  return std::make_unique<TorchConnection>(std::move(end), traits);
}

}  // namespace distgrad
