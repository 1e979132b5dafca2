#include "rank/backward_watch.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rank/input_values.h"

namespace distgrad {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Copies the memory, unlike array_of().
Array copy_of(const at::Tensor& x) {
  return array_of(x.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true,
                                at::MemoryFormat::Contiguous));
}

bool same_bits(const Array& a, const Array& b) {
  return std::memcmp(a.values().data(), b.values().data(), a.values().size_bytes()) == 0;
}

// Runs before the hooks that the subject's code may have left on its result, since what those do is
// a part of its backward.
class AtOutput : public torch::autograd::FunctionPreHook {
 public:
  AtOutput(std::shared_ptr<WatchedCall> watch, std::uint32_t output, bool is_operand)
      : watch_(std::move(watch)), output_(output), is_operand_(is_operand) {}

  variable_list operator()(const variable_list& cotangents) override {
    watch_->arrives(cotangents[output_]);
    if (is_operand_) watch_->gives(cotangents[output_]);
    return cotangents;
  }

 private:
  std::shared_ptr<WatchedCall> watch_;
  std::uint32_t output_;
  bool is_operand_;
};

class BehindNode : public torch::autograd::FunctionPostHook {
 public:
  BehindNode(std::shared_ptr<WatchedCall> watch, std::vector<std::size_t> to_operand)
      : watch_(std::move(watch)), to_operand_(std::move(to_operand)) {}

  variable_list operator()(const variable_list& gradients,
                           const variable_list& /*cotangents*/) override {
    for (const std::size_t i : to_operand_) watch_->gives(gradients[i]);
    watch_->notice_writes();
    return gradients;
  }

 private:
  std::shared_ptr<WatchedCall> watch_;
  std::vector<std::size_t> to_operand_;  // which of the node's gradients are the operand's
};

bool same(const Edge& a, const Edge& b) {
  return a.function == b.function && a.input_nr == b.input_nr;
}

// Returns each node from the output on, except the operand's own, and which of its gradients go to
// the operand.
std::vector<std::pair<Node*, std::vector<std::size_t>>> nodes_between(const Edge& output,
                                                                      const Edge& operand) {
  std::vector<std::pair<Node*, std::vector<std::size_t>>> found;
  std::unordered_set<Node*> seen = {operand.function.get()};
  std::vector<Node*> waiting = {output.function.get()};
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    std::vector<std::size_t> to_operand;
    for (std::size_t i = 0; i < node->next_edges().size(); ++i) {
      const Edge& next = node->next_edges()[i];
      if (operand.is_valid() && same(next, operand)) to_operand.push_back(i);
      waiting.push_back(next.function.get());
    }
    found.emplace_back(node, std::move(to_operand));
  }
  return found;
}

}  // namespace

struct WatchedCall::Place {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  at::TensorOptions options;
  std::int64_t offset;
  Shape sizes;
  Strides strides;
};

WatchedCall::WatchedCall(std::string step, const at::Tensor& operand) {
  seen_.step = std::move(step);
  seen_.operand = copy_of(operand);
  seen_.operand_strides = operand.strides().vec();
}

void WatchedCall::arrives(const at::Tensor& cotangent) {
  if (!cotangent.defined()) return;
  seen_.cotangent = copy_of(cotangent);
  seen_.cotangent_strides = cotangent.strides().vec();
  place_ = std::make_shared<const Place>(Place{cotangent.storage().getWeakStorageImpl(),
                                               cotangent.options(), cotangent.storage_offset(),
                                               cotangent.sizes().vec(), cotangent.strides().vec()});
}

void WatchedCall::gives(const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  // Autograd does the same with a gradient that was broadcast, before anybody else gets it.
  const at::Tensor own = at::is_expandable_to(seen_.operand.shape(), gradient.sizes())
                             ? at::sum_to(gradient.detach(), seen_.operand.shape())
                             : gradient.detach();
  given_ = given_.defined() ? given_ + own : own.clone();
}

// Does nothing if the memory is gone: then nobody can have seen a change.
void WatchedCall::notice_writes() {
  if (!place_) return;
  auto storage = place_->storage.lock();
  if (!storage) return;
  const at::Tensor x =
      at::empty({0}, place_->options.requires_grad(false))
          .set_(c10::Storage(std::move(storage)), place_->offset, place_->sizes, place_->strides);
  Array now = copy_of(x);
  if (!same_bits(now, *seen_.cotangent)) seen_.cotangent_after = std::move(now);
}

ObservedCall WatchedCall::observed() const {
  ObservedCall observed = seen_;
  if (given_.defined()) observed.given = array_of(given_);
  return observed;
}

void watch_graph(const std::shared_ptr<WatchedCall>& watch, const at::Tensor& operand,
                 const at::Tensor& output) {
  if (!output.requires_grad()) return;
  const Edge from = torch::autograd::impl::gradient_edge(output);
  const Edge to = operand.requires_grad() ? torch::autograd::impl::gradient_edge(operand) : Edge();
  auto& hooks = from.function->tensor_pre_hooks();
  hooks.insert(hooks.begin(), std::make_unique<AtOutput>(watch, from.input_nr, same(from, to)));
  for (auto& [node, to_operand] : nodes_between(from, to))
    if (!to_operand.empty() || node == from.function.get())
      node->add_post_hook(std::make_unique<BehindNode>(watch, std::move(to_operand)));
}

}  // namespace distgrad
