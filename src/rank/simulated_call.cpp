#include "rank/simulated_call.h"

#include <ATen/ATen.h>

#include <numeric>

#include "rank/collectives/collective.h"
#include "rank/compiled_program.h"
#include "rank/rule_node.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;

// Accepts other floating dtypes, which the program itself asked for (a reduction in float32, say).
at::Tensor floating(const CollectiveCall& call, const at::Tensor& x) {
  if (x.is_floating_point()) return x;
  throw InvalidAt(call.operand.pointer,
                  std::string("the operand is of dtype ") + c10::toString(x.scalar_type()) +
                      ", not a floating one; convert it, e.g. with 1.0 * (...)");
}

Tensors outputs_of(const Call& call, const Rule* rule, const Tensors& operands) {
  return rule ? call_with_rule(call, *rule, operands)
              : collective(call.spec->kind).simulate(call, operands);
}

}  // namespace

Tensors simulate_step(const Program& program, const Step& step, const Tensors& operands,
                      const Rule* rule, std::vector<SimulatedCall>* calls) {
  const CollectiveCall& spec = *step.collective();
  const std::vector<std::vector<int>> lists = program.partition_of(spec.group);
  Tensors outputs(operands.size());
  for (const std::vector<int>& ranks : lists) {
    Tensors own;
    for (const int r : ranks) own.push_back(floating(spec, operands[r]));
    if (calls)  // an operand may be used elsewhere; the alias's cotangent is this call's alone
      for (at::Tensor& x : own)
        if (x.requires_grad()) x = x.alias();
    try {
      const Tensors result = outputs_of({&spec, static_cast<int>(ranks.size())}, rule, own);
      for (std::size_t i = 0; i < ranks.size(); ++i) outputs[ranks[i]] = result[i];
      if (calls) calls->push_back({&step, std::move(own), result, {}, {}});
    } catch (const InvalidCall& e) {
      std::string members;
      for (const int r : ranks) members += (members.empty() ? "" : ", ") + std::to_string(r);
      throw InvalidAt(
          step.pointer,
          std::string(e.what()) + (lists.size() > 1 ? " (group of ranks " + members + ")" : ""));
    }
  }
  return outputs;
}

std::string why_forward_only(const CollectiveCall& call, const Tensors& operands) {
  if ((call.op != ReduceOp::kMin && call.op != ReduceOp::kMax) || !traits(call.kind).takes_op)
    return {};
  for (const at::Tensor& x : operands)
    if (x.isnan().any().item<bool>())
      return std::string("a NaN among the operands of ") + std::string(name_of(call.op));
  return {};
}

}  // namespace distgrad
