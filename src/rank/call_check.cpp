#include "rank/call_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "judge/closeness.h"
#include "model/distance.h"
#include "rank/collectives/plain_arithmetic.h"

namespace distgrad {
namespace {

using Plains = std::vector<Plain>;

// Limits the error relative to the largest term. The roundings of six ranks are a hundredth of it,
// and a wrong derivative is off by more.
constexpr double kCloseCall = 1e-13;

Plains magnitudes(Plains values) {
  for (Plain& plain : values)
    for (double& v : plain.values) v = std::abs(v);
  return values;
}

// Returns zeros of the shape of `like` if there is no tensor.
Plain plain_or_zeros(const at::Tensor& x, const at::Tensor& like) {
  return plain_of(x.defined() ? x : at::zeros_like(like));
}

std::string difference(const char* what, const Plains& found, const Plains& wanted,
                       const Plains& terms) {
  char text[160];
  if (found.size() != wanted.size()) {
    std::snprintf(text, sizeof text, "%zu of %s, not %zu", found.size(), what, wanted.size());
    return text;
  }
  for (std::size_t r = 0; r < wanted.size(); ++r) {
    if (found[r].shape != wanted[r].shape) {
      std::snprintf(text, sizeof text, "the shape of %s %zu", what, r);
      return text;
    }
    const double close = kCloseCall * largest_magnitude(terms[r].values);
    for (std::size_t e = 0; e < wanted[r].values.size(); ++e) {
      const double x = found[r].values[e], y = wanted[r].values[e];
      if (same_value(x, y) || std::abs(x - y) <= close) continue;
      std::snprintf(text, sizeof text, "%s %zu, element %zu: %.17g, not %.17g", what, r, e, x, y);
      return text;
    }
  }
  return {};
}

bool can_be_asked(const SimulatedCall& call) {
  const ReduceOp op = call.step->collective()->op;
  const bool picks = traits(call.step->collective()->kind).takes_op &&
                     (op == ReduceOp::kMin || op == ReduceOp::kMax);
  return std::all_of(call.operands.begin(), call.operands.end(), [&](const at::Tensor& x) {
    return x.scalar_type() == at::kDouble && !(picks && x.detach().isnan().any().item<bool>());
  });
}

// Returns true for sums, whose result may be much smaller than their terms.
bool adds_up(const CollectiveCall& spec) {
  return spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAvg || spec.op == ReduceOp::kPremulSum;
}

}  // namespace

std::string difference_from_arithmetic(const SimulatedCall& made) {
  if (!can_be_asked(made)) return {};
  const CollectiveCall& spec = *made.step->collective();
  const Call call{&spec, static_cast<int>(made.operands.size())};
  Plains operands, outputs, starts, ends;
  for (const at::Tensor& x : made.operands) operands.push_back(plain_of(x));
  for (const at::Tensor& y : made.outputs) outputs.push_back(plain_of(y));
  const Plains wanted = plain_outputs(call, operands);
  const Plains terms = adds_up(spec) ? plain_outputs(call, magnitudes(operands)) : wanted;
  if (std::string where = difference("output", outputs, wanted, terms); !where.empty())
    return where;
  if (made.operand_cotangents.empty()) return {};
  for (std::size_t r = 0; r < made.operands.size(); ++r) {
    starts.push_back(plain_or_zeros(made.output_cotangents[r], made.outputs[r]));
    ends.push_back(plain_or_zeros(made.operand_cotangents[r], made.operands[r]));
  }
  Plains adjoint = plain_adjoint(call, operands, starts);
  const Plains added = plain_adjoint(call, operands, magnitudes(starts));
  for (std::size_t r = 0; r < adjoint.size(); ++r)  // operands that need no gradient were not asked
                                                    // for one
    if (!made.operands[r].requires_grad()) adjoint[r] = ends[r];
  return difference("cotangent of operand", ends, adjoint, added);
}

}  // namespace distgrad
