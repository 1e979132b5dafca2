// One row a backward rule that some library has: what its backward does, on one rank. Each is the
// Python of the rule in src/rules that has its name.
#include <array>

#include "repro/call_source.h"

namespace distgrad {
namespace {

using Source = const CallSource&;

constexpr const char* kSumOfCotangents =
    "g = g.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(g$group_arg)\n";

std::string adjoint(Source call) { return source_of(call.spec->kind).adjoint(call); }
std::string identity(Source) { return "dx = g\n"; }
std::string same_op(Source call) { return all_reduce_source(call, "g", "dx"); }
std::string forgotten_op(Source call) {
  CollectiveCall sum = *call.spec;
  sum.op = ReduceOp::kSum;
  CallSource as_sum = call;
  as_sum.spec = &sum;
  return filled(as_sum, adjoint(as_sum));
}
std::string own_slice(Source call) { return "dx = " + own_piece_source(call) + "\n"; }
std::string sum_to_all(Source) { return std::string(kSumOfCotangents) + "dx = g\n"; }
std::string gather(Source call) {
  CallSource cotangents = call;
  cotangents.is_uneven = !call.spec->splits.empty();
  return gathered_source(cotangents, "g", "parts") + "dx = torch.cat(parts, $dim)\n";
}
std::string divided(Source call) { return adjoint(call) + "dx = dx / $size\n"; }
std::string multiplied(Source call) { return adjoint(call) + "dx = dx * $size\n"; }
std::string out_over_x(Source) {
  return "dx = torch.where(x == 0, torch.zeros_like(x), g * y / x)\n";
}
std::string sum_out_over_x(Source) {
  return "total = (g * y).contiguous()\ndist.all_reduce(total$group_arg)\ndx = total / x\n";
}
std::string own_full_to_ties(Source) { return "dx = g * (x == y).to(g.dtype)\n"; }
std::string full_to_ties(Source) {
  return std::string(kSumOfCotangents) + "dx = g * (x == y).to(g.dtype)\n";
}
std::string partial_sums_off_root(Source) {
  return "dx = g.clone(memory_format=torch.contiguous_format)\n"
         "dist.reduce(dx, $to)  # off root: whatever the backend leaves in the buffer\n";
}
std::string none(Source) { return "dx = None\n"; }

struct RuleSource {
  std::string_view rule;
  std::string (*backward)(Source);
};

constexpr auto kRules = std::to_array<RuleSource>({
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
    {"partial-sums-off-root", partial_sums_off_root},
    {"none", none},
});

}  // namespace

std::string backward_source(const CallSource& call, const std::string& rule) {
  if (rule == "raises")
    return "raise NotImplementedError(\"the backward of " +
           std::string(traits(call.spec->kind).name) + " is not implemented\")\n";
  for (const RuleSource& row : kRules)
    if (row.rule == rule) return row.backward(call);
  return {};
}

}  // namespace distgrad
