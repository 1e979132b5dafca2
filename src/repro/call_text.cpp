#include "repro/call_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "report/words.h"
#include "repro/python_text.h"

namespace distgrad {
namespace {

using Call = const CollectiveCall&;

// Constructs an op of src/python/distgrad/ranks/collectives/ops.py.
std::string op_text(Call call) {
  return camel_case(name_of(call.op)) +
         (call.op == ReduceOp::kPremulSum ? "(" + number_text(call.factor) + ")" : "()");
}

// Spells the op as torch.distributed does.
std::string torch_op_text(Call call) {
  if (call.op == ReduceOp::kPremulSum)
    return "dist._make_nccl_premul_sum(" + number_text(call.factor) + ")";
  std::string name(name_of(call.op));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return "dist.ReduceOp." + name;
}

std::string pairs_text(Call call) {
  std::vector<std::string> pairs;
  for (const auto& [source, to] : call.pairs) pairs.push_back(fmt::format("({}, {})", source, to));
  return fmt::format("[{}]", fmt::join(pairs, ", "));
}

std::string splits_text(Call call) {
  std::vector<std::string> rows;
  for (const auto& row : call.splits) rows.push_back(fmt::format("[{}]", fmt::join(row, ", ")));
  return fmt::format("[{}]", fmt::join(rows, ", "));
}

std::string dim_text(Call call) {
  if (call.dim) return std::to_string(*call.dim);
  return traits(call.kind).joins() ? "None" : "0";
}

std::string options_but_op(Call call) {
  const CollectiveTraits& takes = traits(call.kind);
  std::string text;
  if (takes.takes_root) text += fmt::format(", root={}", call.root);
  if (takes.takes_dim) text += ", dim=" + dim_text(call);
  if (takes.takes_splits && !call.splits.empty()) text += ", splits=" + splits_text(call);
  if (takes.takes_pairs) text += ", pairs=" + pairs_text(call);
  return text;
}

std::string group_text(Call call) { return call.group.empty() ? "" : ", group"; }
std::string size_text(Call call) {
  return call.group.empty() ? "dist.get_world_size()" : "dist.get_world_size(group)";
}

std::string adjoint(Call call) {
  return fmt::format("{}_adjoint(ctx, g{}{})", traits(call.kind).name, group_text(call),
                     options_text(call));
}
std::string identity(Call) { return "g"; }
std::string same_op(Call call) { return op_text(call) + ".reduced(g" + group_text(call) + ")"; }
std::string forgotten_op(Call call) {
  CollectiveCall sum = call;
  sum.op = ReduceOp::kSum;
  return adjoint(sum);
}
std::string own_slice(Call call) {
  return fmt::format("own_piece(g, ctx.sizes, {}{})", dim_text(call), group_text(call));
}
std::string sum_to_all(Call call) { return "summed(g" + group_text(call) + ")"; }
std::string gather(Call call) {
  return fmt::format("joined(gathered_uneven(g{}), {})", group_text(call), dim_text(call));
}
std::string divided(Call call) { return adjoint(call) + " / " + size_text(call); }
std::string multiplied(Call call) { return adjoint(call) + " * " + size_text(call); }
std::string out_over_x(Call) { return "torch.where(x == 0, torch.zeros_like(x), g * y / x)"; }
std::string sum_out_over_x(Call call) { return "summed(g * y" + group_text(call) + ") / x"; }
std::string own_full_to_ties(Call) { return "g * (x == y).to(g.dtype)"; }
std::string full_to_ties(Call call) { return sum_to_all(call) + " * (x == y).to(g.dtype)"; }
std::string partial_sums_off_root(Call call) {
  return fmt::format("left_by_reduce(g, {}{})", call.root, group_text(call));
}
std::string none(Call) { return "None"; }

struct RuleText {
  std::string_view rule;
  std::string (*backward)(Call);
};

// Has a row for each backward rule that some library uses: what the rule of that name in
// src/rank/rules gives on one rank.
constexpr auto kRules = std::to_array<RuleText>({
    {"native", adjoint},
    {"adjoint", adjoint},
    {"identity", identity},
    {"same_op", same_op},
    {"forgotten_op", forgotten_op},
    {"own_slice", own_slice},
    {"sum_to_all", sum_to_all},
    {"gather", gather},
    {"divided", divided},
    {"multiplied", multiplied},
    {"out_over_x", out_over_x},
    {"sum_out_over_x", sum_out_over_x},
    {"own_full_to_ties", own_full_to_ties},
    {"full_to_ties", full_to_ties},
    {"partial_sums_off_root", partial_sums_off_root},
    {"none", none},
});

}  // namespace

std::string plain_options_text(const CollectiveCall& call) {
  return (traits(call.kind).takes_op ? ", op=" + torch_op_text(call) : "") + options_but_op(call);
}

std::string options_text(const CollectiveCall& call) {
  return (traits(call.kind).takes_op ? ", op=" + op_text(call) : "") + options_but_op(call);
}

std::string backward_text(const CollectiveCall& call, const std::string& rule) {
  for (const RuleText& row : kRules)
    if (row.rule == rule) return row.backward(call);
  return {};
}

}  // namespace distgrad
