#include "rank/backward_watch.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <unordered_map>
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
  const at::Tensor dense = x.layout() == at::kStrided ? x.detach() : x.detach().to_dense();
  return array_of(dense.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true,
                           at::MemoryFormat::Contiguous));
}

Strides strides_of(const at::Tensor& x) {
  return x.layout() == at::kStrided ? x.strides().vec() : Strides();
}

bool same_bits(const Array& a, const Array& b) {
  return std::memcmp(a.values().data(), b.values().data(), a.values().size_bytes()) == 0;
}

bool same(const Edge& a, const Edge& b) {
  return a.function == b.function && a.input_nr == b.input_nr;
}

// One node of a call, with the indices of its gradients that go to the operand, and of those that
// autograd adds to others.
struct OnWay {
  Node* node;
  std::vector<std::size_t> to_operand, joining;
};

// Returns the nodes on the way from the output down to the operand.
std::vector<OnWay> way_between(const Edge& output, const Edge& operand) {
  std::vector<Node*> below;
  std::unordered_set<Node*> seen = {operand.function.get()};
  std::map<std::pair<Node*, std::uint32_t>, int> arrivals;
  std::unordered_map<Node*, std::vector<Node*>> above;
  std::vector<Node*> waiting = {output.function.get()};
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    below.push_back(node);
    for (const Edge& next : node->next_edges()) {
      waiting.push_back(next.function.get());
      above[next.function.get()].push_back(node);
      ++arrivals[{next.function.get(), next.input_nr}];
    }
  }
  std::unordered_set<Node*> on_way;
  for (Node* node : below)
    if (std::ranges::any_of(node->next_edges(), [&](const Edge& e) { return same(e, operand); }))
      waiting.push_back(node);
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    if (!on_way.insert(node).second) continue;
    waiting.insert(waiting.end(), above[node].begin(), above[node].end());
  }
  std::vector<OnWay> found;
  for (Node* node : below) {
    if (!on_way.contains(node)) continue;
    OnWay& entry = found.emplace_back(OnWay{node, {}, {}});
    for (std::size_t i = 0; i < node->next_edges().size(); ++i) {
      const Edge& next = node->next_edges()[i];
      if (same(next, operand)) entry.to_operand.push_back(i);
      if (next.function && arrivals[{next.function.get(), next.input_nr}] > 1)
        entry.joining.push_back(i);
    }
  }
  return found;
}

class Delay : public torch::autograd::FunctionPreHook {
 public:
  explicit Delay(double seconds) : seconds_(seconds) {}
  variable_list operator()(const variable_list& cotangents) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    return cotangents;
  }

 private:
  double seconds_;
};

}  // namespace

std::optional<WatchedMemory> WatchedMemory::of(const at::Tensor& x) {
  if (x.layout() != at::kStrided || !x.has_storage() || x.numel() == 0) return std::nullopt;
  return WatchedMemory(x);
}

WatchedMemory::WatchedMemory(const at::Tensor& x)
    : storage_(x.storage().getWeakStorageImpl()),
      options_(x.options().requires_grad(false)),
      offset_(x.storage_offset()),
      sizes_(x.sizes().vec()),
      strides_(x.strides().vec()),
      held_(copy_of(x)) {}

at::Tensor WatchedMemory::now() const {
  auto storage = storage_.lock();
  if (!storage) return {};
  const at::NoGradGuard plain;
  return at::empty({0}, options_)
      .set_(c10::Storage(std::move(storage)), offset_, sizes_, strides_)
      .clone(at::MemoryFormat::Contiguous);
}

std::optional<Array> WatchedMemory::written() {
  const at::Tensor x = now();
  if (!x.defined()) return std::nullopt;
  Array found = copy_of(x);
  if (same_bits(found, held_)) return std::nullopt;
  held_ = found;
  return found;
}

bool WatchedMemory::holds(const at::Tensor& x) const {
  return x.defined() && x.has_storage() && !storage_.expired() &&
         x.storage().unsafeGetStorageImpl() == storage_._unsafe_get_target();
}

// Runs before the hooks that the subject's code may have left on its result, since what those do is
// a part of its backward.
class WatchedCall::AtOutput : public torch::autograd::FunctionPreHook {
 public:
  AtOutput(std::shared_ptr<WatchedCall> watch, std::uint32_t output)
      : watch_(std::move(watch)), output_(output) {}
  variable_list operator()(const variable_list& cotangents) override {
    watch_->arrives(cotangents[output_]);
    return cotangents;
  }

 private:
  std::shared_ptr<WatchedCall> watch_;
  std::uint32_t output_;
};

// Runs after those hooks, where the result is the operand.
class WatchedCall::PassedOn : public torch::autograd::FunctionPreHook {
 public:
  PassedOn(std::shared_ptr<WatchedCall> watch, std::uint32_t output)
      : watch_(std::move(watch)), output_(output) {}
  variable_list operator()(const variable_list& cotangents) override {
    watch_->gives(cotangents[output_]);
    watch_->notice_writes();
    return cotangents;
  }

 private:
  std::shared_ptr<WatchedCall> watch_;
  std::uint32_t output_;
};

// Where autograd may have added to the cotangent's memory in place, only what is written while a
// node runs is the call's doing.
class WatchedCall::BeforeNode : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeNode(std::shared_ptr<WatchedCall> watch) : watch_(std::move(watch)) {}
  variable_list operator()(const variable_list& cotangents) override {
    if (watch_->memory_ && watch_->is_autograds_) watch_->memory_->written();
    return cotangents;
  }

 private:
  std::shared_ptr<WatchedCall> watch_;
};

class WatchedCall::BehindNode : public torch::autograd::FunctionPostHook {
 public:
  BehindNode(std::shared_ptr<WatchedCall> watch, std::size_t place, OnWay on_way)
      : watch_(std::move(watch)), place_(place), on_way_(std::move(on_way)) {}

  variable_list operator()(const variable_list& gradients,
                           const variable_list& /*cotangents*/) override {
    WatchedCall& watch = *watch_;
    if (watch.arrivals_ != 1 || !watch.ran_.insert(place_).second) {
      watch.is_unclear_ = true;
      return gradients;
    }
    for (const std::size_t i : on_way_.to_operand) watch.gives(gradients[i]);
    watch.notice_writes();
    for (const std::size_t i : on_way_.joining)
      if (watch.memory_ && watch.memory_->holds(gradients[i])) watch.is_autograds_ = true;
    return gradients;
  }

 private:
  std::shared_ptr<WatchedCall> watch_;
  std::size_t place_;
  OnWay on_way_;
};

WatchedCall::WatchedCall(std::string step, const at::Tensor& operand)
    : operand_(operand.requires_grad() ? torch::autograd::impl::gradient_edge(operand) : Edge()) {
  seen_.step = std::move(step);
  seen_.operand = copy_of(operand);
  seen_.operand_strides = strides_of(operand);
}

void WatchedCall::arrives(const at::Tensor& cotangent) {
  if (++arrivals_ > 1) {
    is_unclear_ = true;
  } else if (!cotangent.defined()) {
    seen_.cotangent = array_of(at::zeros(output_sizes_, at::kDouble));
  } else {
    seen_.cotangent = copy_of(cotangent);
    seen_.cotangent_strides = strides_of(cotangent);
    memory_ = WatchedMemory::of(cotangent);
  }
}

// Adds a part as autograd adds up what several nodes give. Autograd keeps the first part itself, so
// the call's other nodes may still write to it; from the second part on it has its own sum.
void WatchedCall::gives(const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  // Autograd does the same with a gradient that was broadcast, before anybody else gets it.
  const bool is_broadcast = gradient.layout() == at::kStrided &&
                            gradient.sizes() != at::IntArrayRef(seen_.operand.shape()) &&
                            at::is_expandable_to(seen_.operand.shape(), gradient.sizes());
  const at::Tensor own =
      is_broadcast ? at::sum_to(gradient.detach(), seen_.operand.shape()) : gradient.detach();
  if (!given_.defined()) {
    given_ =
        own.layout() == at::kStrided ? own.clone(at::MemoryFormat::Contiguous) : own.to_dense();
    if (!is_broadcast) first_ = WatchedMemory::of(gradient);
    return;
  }
  if (first_)
    if (const at::Tensor held = first_->now(); held.defined()) given_ = held;
  given_ = given_ + own;
  first_.reset();
}

void WatchedCall::notice_writes() {
  if (!memory_) return;
  if (auto written = memory_->written()) seen_.cotangent_after = std::move(*written);
}

ObservedCall WatchedCall::observed() const {
  ObservedCall observed = seen_;
  if (given_.defined()) observed.given = array_of(given_);
  return observed;
}

void watch_graph(const std::shared_ptr<WatchedCall>& watch, const at::Tensor& output) {
  const Edge to = std::exchange(watch->operand_, {});
  if (!output.requires_grad()) return;
  watch->output_sizes_ = output.sizes().vec();
  const Edge from = torch::autograd::impl::gradient_edge(output);
  auto& hooks = from.function->tensor_pre_hooks();
  hooks.insert(hooks.begin(), std::make_unique<WatchedCall::AtOutput>(watch, from.input_nr));
  if (!to.is_valid()) return;
  if (same(from, to)) {
    hooks.push_back(std::make_unique<WatchedCall::PassedOn>(watch, from.input_nr));
    return;
  }
  const std::vector<OnWay> way = way_between(from, to);
  const bool joins = std::ranges::any_of(way, [](const OnWay& n) { return !n.joining.empty(); });
  for (std::size_t place = 0; place < way.size(); ++place) {
    Node& node = *way[place].node;
    node.add_post_hook(std::make_unique<WatchedCall::BehindNode>(watch, place, way[place]));
    if (joins) node.add_pre_hook(std::make_unique<WatchedCall::BeforeNode>(watch));
  }
}

std::vector<ObservedCall> observed_of(const std::vector<std::shared_ptr<WatchedCall>>& calls) {
  std::vector<std::vector<const WatchedCall*>> by_step;
  for (const auto& call : calls) {
    if (call->is_unclear()) return {};
    const auto known = std::ranges::find_if(
        by_step, [&](const auto& others) { return others[0]->step() == call->step(); });
    if (known == by_step.end())
      by_step.push_back({call.get()});
    else
      known->push_back(call.get());
  }
  std::vector<ObservedCall> entries;
  for (const auto& own : by_step) {
    const auto has_run = [](const WatchedCall* call) { return call->has_run(); };
    if (std::ranges::count_if(own, has_run) > 1) return {};
    const auto ran = std::ranges::find_if(own, has_run);
    entries.push_back((ran == own.end() ? own[0] : *ran)->observed());
  }
  return entries;
}

void delay_backward(const at::Tensor& output, double seconds) {
  if (!output.requires_grad()) return;
  auto& hooks = torch::autograd::impl::gradient_edge(output).function->tensor_pre_hooks();
  hooks.insert(hooks.begin(), std::make_unique<Delay>(seconds));
}

}  // namespace distgrad
