#include "rank/mutated_calls.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "model/group_order.h"
#include "rank/rules/linear_mistake.h"
#include "rank/rules/mistakes.h"

namespace distgrad {
namespace {

// Wraps the native backward, on the tensors that autograd has.
Backward of_memory(const LocalMistake& mistake) {
  return
      [&mistake](const CallSite& site, const SavedForBackward& saved, const at::Tensor& cotangent) {
        SavedForBackward read = saved;
        at::Tensor g = cotangent;
        mistake.before(read.operand, g);
        return mistake.after(native_backward(site, read, g), cotangent);
      };
}

// Describes a call that is made as well, for its backward.
struct OtherCall {
  CollectiveCall spec;
  CallSite site;
  SavedForBackward saved;
};

void run_forward(OtherCall& other, const at::Tensor& operand) {
  other.saved.operand = operand.detach();
  other.saved.output =
      collective(other.spec.kind)
          .forward(other.site.call, *other.site.connection, other.saved.operand, other.saved);
}

}  // namespace

MutatedCalls::MutatedCalls(const Program& program, std::string_view subject, int rank,
                           GroupConnections& connections)
    : program_(program),
      mutations_(mutations_of(subject)),
      rank_(rank),
      connections_(connections) {}

void MutatedCalls::prepare(const std::shared_ptr<CallSite>& site, const Step& step,
                           const at::Tensor& operand) {
  for (const Mutation& mutation : mutations_)
    if (mutation.step == step.name) apply(mutation, *site, operand);
}

void MutatedCalls::note(const std::shared_ptr<CallSite>& site, const Step& step,
                        const at::Tensor& output) {
  const bool lends = std::ranges::any_of(mutations_, [&](const Mutation& m) {
    return m.kind == Mutation::Kind::kStale && m.name == step.name;
  });
  if (lends) made_[step.name] = {site, output};
}

void MutatedCalls::apply(const Mutation& mutation, CallSite& site, const at::Tensor& operand) {
  using enum Mutation::Kind;
  const CollectiveCall& call = *site.call.spec;
  switch (mutation.kind) {
    case kRule:
      site.backward = of_rule(mutation.name, call);
      return;
    case kWithout:
      if (static_cast<std::uint64_t>(rank_) != mutation.number) return;
      site.backward = [](const CallSite& own, const SavedForBackward& saved,
                         const at::Tensor& cotangent) {
        return native_backward(own, saved, at::zeros_like(cotangent));
      };
      return;
    case kLinear:
      site.backward =
          joint_backward([seed = mutation.number](const Call& joint, const JointValues& values) {
            return linear_mistake(seed, joint, values);
          });
      return;
    case kStale:  // a call that is driven is alone, so nobody else writes to its buffer
      if (const auto lender = made_.find(mutation.name); lender != made_.end())
        lend_gradient(*lender->second.site, lender->second.output, site, operand);
      return;
    case kRoot:
    case kGroup:
    case kOrder:
      site.backward = of_other_call(mutation, call, operand);
      return;
  }
}

Backward MutatedCalls::of_rule(const std::string& name, const CollectiveCall& call) const {
  const Rule* rule = rule_named(name);
  if (rule == nullptr || !rule->applies(call))
    throw std::invalid_argument("no rule for this call: " + name);
  if (name == "partial_sums_off_root") return partial_sums_backward;
  const LocalMistake* mistake = local_mistake_named(name);
  return mistake ? of_memory(*mistake) : rule_backward(*rule);
}

Backward MutatedCalls::of_other_call(const Mutation& mutation, const CollectiveCall& call,
                                     const at::Tensor& operand) {
  const auto other = std::make_shared<OtherCall>();
  other->spec = call;
  if (mutation.kind == Mutation::Kind::kRoot) other->spec.root = static_cast<int>(mutation.number);
  if (mutation.kind == Mutation::Kind::kGroup) {
    other->spec.group = mutation.name == "world" ? "" : mutation.name;
    if (!other->spec.group.empty() && !program_.group_named(other->spec.group))
      throw std::invalid_argument("no group " + mutation.name);
  }
  for (std::vector<int>& list : program_.partition_of(other->spec.group)) {
    if (std::ranges::find(list, rank_) == list.end()) continue;
    if (mutation.kind == Mutation::Kind::kOrder) list = reordered(list, mutation.name, call.root);
    if (other->spec.root >= static_cast<int>(list.size()))
      throw std::invalid_argument("no root in the group");
    other->site.call = {&other->spec, static_cast<int>(list.size())};
    other->site.connection = &connections_.of(list);
  }
  run_forward(*other, operand);
  return [other](const CallSite&, const SavedForBackward&, const at::Tensor& cotangent) {
    return native_backward(other->site, other->saved, cotangent);
  };
}

}  // namespace distgrad
