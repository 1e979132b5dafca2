// Operators that a user's library might register: an all_reduce whose backward is right for one
// loss that every rank computes, one that is right for the sum of the ranks' losses, one that is
// right for neither, one that is for contiguous cotangents only, one that writes into its operand,
// and one that takes a ProcessGroup. Three of all_gather: one stacks, one joins, and the backward
// of one keeps what its own loss saw.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace {

at::Tensor summed(const at::Tensor& x, const std::string& group) {
  std::vector<at::Tensor> tensors = {x.contiguous().clone()};
  c10d::resolve_process_group(group)->allreduce(tensors)->wait();
  return tensors[0];
}

enum class Backward { kIdentity, kSummed, kHalved, kInMemoryOrder };

template <Backward kBackward>
struct AllReduce : torch::autograd::Function<AllReduce<kBackward>> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const std::string& group) {
    ctx->saved_data["group"] = group;
    return summed(x, group);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list g) {
    const std::string group = ctx->saved_data["group"].toStringRef();
    if constexpr (kBackward == Backward::kIdentity) return {g[0], at::Tensor()};
    // What a kernel does that takes every cotangent for contiguous.
    const at::Tensor own =
        kBackward == Backward::kInMemoryOrder && g[0].is_non_overlapping_and_dense()
            ? g[0].as_strided({g[0].numel()}, {1}).reshape(g[0].sizes())
            : g[0];
    const at::Tensor sum = summed(own, group);
    return {kBackward == Backward::kHalved ? sum / 2 : sum, at::Tensor()};
  }
};

template <Backward kBackward>
at::Tensor all_reduce(const at::Tensor& x, std::string group_name) {
  return AllReduce<kBackward>::apply(x, group_name);
}

// Sums into the operand's own memory, which its schema does not say.
at::Tensor in_its_operand(const at::Tensor& x, std::string group_name) {
  struct Sum : torch::autograd::Function<Sum> {
    static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                              const std::string& group) {
      ctx->saved_data["group"] = group;
      std::vector<at::Tensor> own = {x.detach().contiguous()};
      c10d::resolve_process_group(group)->allreduce(own)->wait();
      return own[0].clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list g) {
      return {summed(g[0], ctx->saved_data["group"].toStringRef()), at::Tensor()};
    }
  };
  return Sum::apply(x, group_name);
}

at::Tensor by_group(const at::Tensor& x, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return all_reduce<Backward::kSummed>(x, group->getGroupName());
}

enum class Form { kStacked, kJoined, kOwnSlice };

template <Form kForm>
struct AllGather : torch::autograd::Function<AllGather<kForm>> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const std::string& group) {
    ctx->saved_data["group"] = group;
    ctx->saved_data["rows"] = x.dim() > 0 ? x.size(0) : -1;
    const auto ranks = c10d::resolve_process_group(group);
    std::vector<std::vector<at::Tensor>> parts(1);
    for (int r = 0; r < ranks->getSize(); ++r)
      parts[0].push_back(at::empty_like(x, at::MemoryFormat::Contiguous));
    std::vector<at::Tensor> own = {x.contiguous()};
    ranks->allgather(parts, own)->wait();
    return kForm == Form::kJoined && x.dim() > 0 ? at::cat(parts[0]) : at::stack(parts[0]);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list g) {
    const std::string group = ctx->saved_data["group"].toStringRef();
    const int rank = c10d::resolve_process_group(group)->getRank();
    const std::int64_t rows = ctx->saved_data["rows"].toInt();
    const at::Tensor sum = kForm == Form::kOwnSlice ? g[0] : summed(g[0], group);
    const bool is_joined = kForm == Form::kJoined && rows >= 0;
    const at::Tensor own = is_joined ? sum.narrow(0, rank * rows, rows) : sum[rank];
    return {own.clone(), at::Tensor()};
  }
};

template <Form kForm>
at::Tensor all_gather(const at::Tensor& x, std::string group_name) {
  return AllGather<kForm>::apply(x, group_name);
}

at::Tensor compressed(const at::Tensor& x, std::int64_t bits) { return x / bits; }

}  // namespace

TORCH_LIBRARY(example, m) {
  m.def("all_reduce(Tensor x, str group_name) -> Tensor", all_reduce<Backward::kSummed>);
  m.def("reduce_from_region(Tensor x, str group_name) -> Tensor", all_reduce<Backward::kIdentity>);
  m.def("halved(Tensor x, str group_name) -> Tensor", all_reduce<Backward::kHalved>);
  m.def("in_memory_order(Tensor x, str group_name) -> Tensor",
        all_reduce<Backward::kInMemoryOrder>);
  m.def("in_its_operand(Tensor x, str group_name) -> Tensor", in_its_operand);
  m.def("by_group(Tensor x, __torch__.torch.classes.c10d.ProcessGroup group) -> Tensor", by_group);
  m.def("all_gather(Tensor x, str group_name) -> Tensor", all_gather<Form::kStacked>);
  m.def("all_gather_joined(Tensor x, str group_name) -> Tensor", all_gather<Form::kJoined>);
  m.def("all_gather_own(Tensor x, str group_name) -> Tensor", all_gather<Form::kOwnSlice>);
  m.def("compressed(Tensor x, int bits) -> Tensor", compressed);
}
