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
    {"own_part", "counted the rank's own cotangent alone and dropped the other ranks'.",
     "the loss is one loss that every rank computes", "replicated",
     "Else let the cotangents travel back and add them up: the backward of every collective is a "
     "collective itself."},
    {"others_part", "counted the other ranks' cotangents and left out the rank's own.", "", "",
     "Add the rank's own cotangent: look for a detach of the rank's own share, or a loop over the "
     "other ranks that starts from zero."},
    {"reduced_twice", "is the right one, summed over the ranks once more.", "", "",
     "Sum the cotangents once: look for a second all_reduce of the same gradient."},
    {"next_slice", "gave each rank what belongs to the next rank.", "", "",
     "Cut the gradient at the rank's own place in the group: look for an offset that is one too "
     "large."},
    {"previous_slice", "gave each rank what belongs to the previous rank.", "", "",
     "Cut the gradient at the rank's own place in the group: look for an offset that is one too "
     "small."},
    {"mirrored_slice", "gave the ranks their gradients in the reverse order.", "", "",
     "Cut the gradient at the rank's own place in the group, counting from the first rank."},
    {"first_slice", "gave every rank the slice of the group's first rank.", "", "",
     "Add the rank's offset to the index of the slice: it is missing."},
    {"own_slices_summed",
     "took each rank's own slice of its own cotangent and summed these, which are of different "
     "operands.",
     "", "",
     "Sum the whole cotangents first and take the rank's own slice then: a reduce_scatter."},
    {"next_cotangent", "took the next rank's cotangent for each rank's own.", "", "",
     "Join the cotangents in the order of the ranks in the group."},
    {"previous_cotangent", "took the previous rank's cotangent for each rank's own.", "", "",
     "Join the cotangents in the order of the ranks in the group."},
    {"mirrored_cotangent", "took the cotangents in the reverse order of the ranks.", "", "",
     "Join the cotangents in the order of the ranks in the group."},
    {"first_place", "put the cotangent where the first rank's slice lies, whatever the rank.", "",
     "", "Add the rank's offset to the index of the slice: it is missing."},
    {"not_exchanged", "passed the rank's own cotangent on instead of sending it back.", "", "",
     "Send each part of the cotangent back to the rank that the value came from."},
    {"sent_forward", "sent the cotangents the way of the values once more instead of back.", "", "",
     "Exchange source and destination in backward."},
    {"all_to_each_tie", "gave the cotangent in full to every rank that holds the extremum.", "", "",
     "Share the cotangent among the ranks that tie, so that the shares add up to it once."},
    {"all_to_first_tie",
     "gave the cotangent in full to the first rank that holds the extremum, and nothing to those "
     "that tie with it.",
     "", "", "Share the cotangent among the ranks that tie."},
    {"total_out_over_x", "divided the product by the operand, which is NaN where the operand is 0.",
     "", "",
     "Multiply the other ranks' operands instead of dividing: at a zero the derivative is the "
     "product of the others."},
    {"total_out_over_x_or_0",
     "divided the product by the operand, and gave 0 where the operand is 0.", "", "",
     "Multiply the other ranks' operands instead of dividing: at a zero the derivative is the "
     "product of the others."},
    {"as_stored",
     "read the cotangent in the order of its memory, as if it were contiguous, which it is not.",
     "", "", "Call .contiguous() on the cotangent before it goes to the collective."},
    {"operand_as_stored",
     "read the operand in the order of its memory, as if it were contiguous, which it is not.", "",
     "", "Call .contiguous() on the operand before it goes to the collective."},
    {"overwritten",
     "was written over the cotangent that it was handed, which something else reads as well.", "",
     "", "Clone the cotangent first: what autograd hands to a backward must not be changed."},
    {"in_float32", "went through float32.", "", "",
     "Keep the cotangent in its own dtype, or accept the error with an explicit tolerance."},
    {"in_float16", "went through float16.", "", "",
     "Keep the cotangent in its own dtype, or accept the error with an explicit tolerance."},
    {"in_bfloat16", "went through bfloat16.", "", "",
     "Keep the cotangent in its own dtype, or accept the error with an explicit tolerance."},
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
