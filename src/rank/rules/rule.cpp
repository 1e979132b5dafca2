#include "rank/rules/rule.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "rank/collectives/common.h"
#include "rank/rules/applies_to.h"
#include "rank/rules/mistakes.h"

namespace distgrad {

using Tensors = std::vector<at::Tensor>;

Tensors adjoint_of(const CollectiveCall& spec, int size, const JointValues& v) {
  const at::AutoGradMode record(true);
  Tensors operands;
  for (const at::Tensor& x : v.operands) operands.push_back(x.detach().requires_grad_(true));
  const Call call{&spec, size};
  Tensors outputs, cotangents;
  const Tensors all = collective(spec.kind).simulate(call, operands);
  for (int r = 0; r < size; ++r) {
    if (!all[r].requires_grad()) continue;  // zeros off root: their cotangent counts for nothing
    outputs.push_back(all[r]);
    cotangents.push_back(v.cotangents[r]);
  }
  Tensors grads = outputs.empty()
                      ? Tensors(size)
                      : torch::autograd::grad(outputs, operands, cotangents, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  for (int r = 0; r < size; ++r)
    if (!grads[r].defined()) grads[r] = at::zeros_like(v.operands[r]);
  return grads;
}

Tensors adjoint(const Call& call, const JointValues& v) {
  return adjoint_of(*call.spec, call.size, v);
}

namespace {

using enum CollectiveKind;

Tensors identity(const Call&, const JointValues& v) { return v.cotangents; }

Tensors same_op(const Call& call, const JointValues& v) {
  return Tensors(call.size, reduction(call, v.cotangents));
}

Tensors forgotten_op(const Call& call, const JointValues& v) {
  CollectiveCall sum = *call.spec;
  sum.op = ReduceOp::kSum;
  return adjoint_of(sum, call.size, v);
}

Tensors own_slice(const Call& call, const JointValues& v) {
  Tensors out;
  std::int64_t before = 0;
  for (int r = 0; r < call.size; ++r) {
    if (!call.spec->dim) {
      out.push_back(v.cotangents[r].select(0, r));
      continue;
    }
    const std::int64_t dim = dim_of(call, v.operands[r]);
    out.push_back(v.cotangents[r].narrow(dim, before, v.operands[r].size(dim)));
    before += v.operands[r].size(dim);
  }
  return out;
}

Tensors sum_to_all(const Call& call, const JointValues& v) {
  return Tensors(call.size, at::stack(v.cotangents).sum(0));
}

Tensors gather(const Call& call, const JointValues& v) {
  return Tensors(call.size, at::cat(v.cotangents, dim_of(call, v.operands[0])));
}

Tensors scaled(const Call& call, const JointValues& v, double factor) {
  Tensors out = adjoint(call, v);
  for (at::Tensor& x : out) x = x * factor;
  return out;
}
Tensors divided(const Call& call, const JointValues& v) {
  Tensors out = adjoint(call, v);
  for (at::Tensor& x : out) x = x / static_cast<double>(call.size);
  return out;
}
Tensors multiplied(const Call& call, const JointValues& v) { return scaled(call, v, call.size); }

Tensors out_over_x(const Call& call, const JointValues& v) {
  Tensors out;
  for (int r = 0; r < call.size; ++r) {
    const at::Tensor& x = v.operands[r];
    out.push_back(at::where(x.eq(0), at::zeros_like(x), v.cotangents[r] * v.outputs[r] / x));
  }
  return out;
}

Tensors sum_out_over_x(const Call& call, const JointValues& v) {
  Tensors terms;
  for (int r = 0; r < call.size; ++r) terms.push_back(v.cotangents[r] * v.outputs[r]);
  const at::Tensor total = at::stack(terms).sum(0);
  Tensors out;
  for (const at::Tensor& x : v.operands) out.push_back(total / x);
  return out;
}

Tensors to_holders(const Call& call, const JointValues& v, const Tensors& cotangents) {
  Tensors out;
  for (int r = 0; r < call.size; ++r)
    out.push_back(cotangents[r] * v.operands[r].eq(v.outputs[r]).to(cotangents[r].scalar_type()));
  return out;
}
Tensors own_full_to_ties(const Call& call, const JointValues& v) {
  return to_holders(call, v, v.cotangents);
}
Tensors full_to_ties(const Call& call, const JointValues& v) {
  return to_holders(call, v, sum_to_all(call, v));
}

Tensors none(const Call& call, const JointValues&) { return Tensors(call.size); }

Tensors raises(const Call& call, const JointValues&) {
  throw RaisesInBackward("the backward of " + std::string(traits(call.spec->kind).name) +
                         " is not implemented");
}

// What diffdist's broadcast gives off root depends on what the backend's reduce leaves in the
// buffer, which only a real run shows (src/rank runs it natively). This pure rule leaves the rank's
// own cotangent there, as an untouched buffer would.
Tensors partial_sums_off_root(const Call& call, const JointValues& v) {
  Tensors out = v.cotangents;
  out[call.spec->root] = at::stack(v.cotangents).sum(0);
  return out;
}

bool keeps_shape(const CollectiveCall& c) { return traits(c.kind).keeps_shape(); }
bool reduces_to_all(const CollectiveCall& c) { return c.kind == kAllReduce; }
bool multiplies_to_all(const CollectiveCall& c) {
  return c.kind == kAllReduce && c.op == ReduceOp::kProduct;
}
bool picks_to_all(const CollectiveCall& c) {
  return c.kind == kAllReduce && (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax);
}
bool broadcasts(const CollectiveCall& c) { return c.kind == kBroadcast; }

constexpr std::array kRules = std::to_array<Rule>({
    {"adjoint", anything, adjoint},
    {"identity", keeps_shape, identity},
    {"same_op", reduces_to_all, same_op},
    {"forgotten_op", reduces, forgotten_op},
    {"own_slice", gathers_to_all, own_slice},
    {"sum_to_all", keeps_shape, sum_to_all},
    {"gather", slices, gather},
    {"divided", communicates, divided},
    {"multiplied", communicates, multiplied},
    {"out_over_x", multiplies_to_all, out_over_x},
    {"sum_out_over_x", multiplies_to_all, sum_out_over_x},
    {"own_full_to_ties", picks_to_all, own_full_to_ties},
    {"full_to_ties", picks_to_all, full_to_ties},
    {"partial_sums_off_root", broadcasts, partial_sums_off_root},
    {"none", anything, none},
    {"raises", anything, raises},
});

}  // namespace

const Rule* rule_named(std::string_view name) {
  for (const Rule& rule : kRules)
    if (rule.name == name) return &rule;
  for (const Rule& rule : mistakes())
    if (rule.name == name) return &rule;
  return nullptr;
}

}  // namespace distgrad
