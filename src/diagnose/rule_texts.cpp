#include "diagnose/rule_texts.h"

#include "model/libraries.h"

namespace distgrad {
namespace {

constexpr RuleText kTexts[] = {
    {"identity", "passed the local cotangent on and dropped the other ranks'.",
     "the loss is one loss that every rank computes", "replicated",
     "Else sum the cotangents over the group in backward: torch.distributed.nn.functional and "
     "torch.distributed._functional_collectives do, the plain in-place collectives do not."},
    {"same_op", "applied the collective's own reduction to the cotangents.", "", "",
     "Whatever the op, the cotangents are summed over the ranks, and then multiplied by the op's "
     "own derivative: of max, min and product compute that yourself, e.g. from an all_gather and a "
     "local reduction."},
    {"forgotten_op", "is that of a sum, whatever the op was.", "", "",
     "Divide by the group's size where the op is avg, multiply by the factor where it is "
     "premul_sum; for max, min and product reduce locally what an all_gather brings."},
    {"own_slice",
     "kept the slice that the rank's own loss saw and dropped what the other ranks' losses saw "
     "of it.",
     "the loss is one loss that every rank computes from all slices", "replicated",
     "Else add up the ranks' cotangents of each slice: a reduce_scatter of the whole cotangent, as "
     "torch.distributed.nn.functional.all_gather does, or all_reduce and then slice."},
    {"gather", "joined the ranks' cotangents and gave all of them to every rank.",
     "the operand is one replicated value that every rank holds", "",
     "Else only the rank's own slice of its operand was used: zeros everywhere else."},
    {"sum_to_all", "summed the cotangents over the ranks once more than the chain rule does.",
     "the operand is one replicated value of which each rank's loss sees a share", "",
     "Sum in one place only: here, or where the gradient is synchronised."},
    {"divided", "is the right one divided by the group's size.",
     "the losses are to be averaged over the group and nothing else divides by its size", "mean",
     "Divide in one place only: the loss, the collective or the gradient's synchronisation."},
    {"multiplied", "is the right one multiplied by the group's size, as if summed twice.", "", "",
     "Sum the cotangents once: look for a second all_reduce of the same gradient, or a missing "
     "division."},
    {"out_over_x",
     "divided the product by the operand, passed on only the local cotangent, and gave 0 where the "
     "operand is 0.",
     "", "",
     "Multiply the other ranks' operands instead of dividing: at a zero the derivative is the "
     "product of the others."},
    {"sum_out_over_x", "divided the product by the operand, which is NaN where the operand is 0.",
     "", "",
     "Multiply the other ranks' operands instead of dividing: at a zero the derivative is the "
     "product of the others."},
    {"own_full_to_ties", "gave the local cotangent in full to every rank that holds the extremum.",
     "", "", "Sum the cotangents over the ranks, and share them among the ranks that tie."},
    {"full_to_ties", "gave the summed cotangent in full to every rank that holds the extremum.", "",
     "", "Share the cotangent among the ranks that tie, so that the shares add up to it once."},
    {"leftovers",
     "left off root what a reduction to root leaves in its buffer, where the gradient is 0.", "",
     "", "Return zeros on the ranks that are not root: what they passed in was not used."},
    {"none", "gave no gradient to the operand.", "", "",
     "Use a differentiable collective: a plain torch.distributed call into a new tensor is cut off "
     "from the graph."},
};

}  // namespace

RuleText text_of_rule(std::string_view rule) {
  for (const RuleText& text : kTexts)
    if (text.rule == rule) return text;
  for (const BackwardRuleRow& row : backward_rules())
    if (row.name == rule) return {rule, row.summary, "", "", ""};
  return {rule, rule, "", "", ""};
}

}  // namespace distgrad
