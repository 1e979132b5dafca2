#include "report/finding_help.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "model/findings.h"

namespace distgrad {
namespace {

struct HelpRow {
  std::string_view finding;
  std::string_view help;
};

constexpr std::array<HelpRow, kFindings.size()> kHelp = {{
    // finding, what to do
    {"objective",
     "Decide what the ranks' losses stand for: their sum, their mean, or one loss that every rank "
     "computes. Then either declare that objective in the scenario, or scale the loss or the "
     "gradients (by the number of ranks, as a rule) to what is declared."},
    {"program",
     "Compare the distributed program with `single_device` step by step: a wrong split of the "
     "data, a missing or doubled reduction of the loss, or a mean where a sum is meant is the "
     "usual cause. The collectives' backward is not to blame."},
    {"identity-backward",
     "Send the cotangents the other way in backward: sum them over the group (all_reduce) or onto "
     "the source (broadcast), or give every rank those of root (reduce). Of an all_reduce with sum "
     "it is right as it is only if the loss is one loss that every rank computes: then declare the "
     "objective `replicated`."},
    {"same-op-backward",
     "Whatever the op, sum the cotangents over the ranks, then multiply by the op's own "
     "derivative. Of max, min and product compute that yourself, e.g. from an all_gather and a "
     "local reduction."},
    {"forgotten-op",
     "Divide by the group's size where the op is avg, multiply by the factor where it is "
     "premul_sum; for max, min and product reduce locally what an all_gather brings."},
    {"own-slice",
     "Add up what all ranks' losses saw of each slice: a reduce_scatter of the whole cotangent, or "
     "an all_reduce and then the slice. Right as it is only if every rank computes one and the "
     "same loss from all slices."},
    {"wrong-slice",
     "Look at which part of the cotangent goes to which rank: offsets, the dimension, the root, "
     "uneven splits, and the order of the ranks within the group."},
    {"missing-reduction",
     "Find the rank whose cotangent is dropped: a detach, a no_grad, a list that is filled by "
     "another collective without gradient, or a branch that not all ranks take."},
    {"double-reduction",
     "Sum the cotangents in one place only: in the collective's backward or where the gradient is "
     "synchronised, such as DistributedDataParallel or a sync of the input."},
    {"scaled",
     "Find the factor's origin: a mean where a sum is meant (1/N), a sum over ranks that hold the "
     "same value (N), or a division both in the loss and in the synchronisation."},
    {"zero-input",
     "Do not divide the product by the operand: multiply the other ranks' operands, so that the "
     "derivative at a zero is the product of the others."},
    {"tie",
     "Share the cotangent among the ranks that hold the extremum, so that the shares add up to it "
     "once."},
    {"no-gradient",
     "The result does not depend on the input as far as autograd knows: a collective that writes "
     "into a buffer, a detach, .data, .item(), or a no_grad on the way. Use a collective that "
     "autograd knows, or write its backward."},
    {"unsynchronised",
     "All-reduce the gradient over the ranks that hold the same parameter before it is used, or "
     "wrap the module so that this happens."},
    {"stale-or-aliased",
     "Do not reuse or overwrite a buffer that backward still needs, and do not modify a cotangent "
     "in place: clone it first. A buffer from torch.empty must be written on every rank."},
    {"contiguity",
     "Call .contiguous() on what is handed to the collective, in forward and in backward: "
     "cotangents of an expand, a transpose or a slice are not contiguous."},
    {"precision",
     "Look for a cast, an autocast region or a buffer of a narrower dtype between the operand and "
     "the gradient; reduce in the wide dtype, then cast."},
    {"group-rank",
     "torch.distributed wants global ranks for src, dst and root, and ranks within the group for "
     "offsets into the group's data: convert with get_global_rank and get_group_rank."},
    {"wrong-group",
     "Pass the same group to the backward's collective as to the forward's; without one it runs "
     "over the world."},
    {"forward",
     "Mend the forward first: operand, op, group, root, order of the gathered parts. The "
     "gradients of another function cannot be judged."},
    {"nondeterministic",
     "Look for a race: an asynchronous collective whose result is used before wait(), a buffer "
     "that two streams share, or randomness without a seed."},
    {"truth",
     "The scenario's own `truth` and its program contradict each other. Work it out by hand for "
     "one element; the program is simulated in one process without any collective, so the figure "
     "is the likelier mistake."},
    {"other-backward",
     "Compare the measured formula with the right one, term by term: it says what each rank's "
     "operand gets from each rank's cotangent."},
    {"shape",
     "Compare gradients of the same model, cut in the same way; a tensor may be stored "
     "transposed."},
    {"unknown",
     "Compare gradients of the same model: names must be the same in both runs, and what is frozen "
     "or unused in one must be so in the other."},
    {"vacuous",
     "Let the loss depend on what the collectives give, with cotangents that differ by rank and by "
     "element; then a wrong backward shows."},
    {"unexplained",
     "Run the case with --verbose --full and look at which ranks and elements differ: the mistake "
     "is none of the known ones. Shorten the program step by step until the difference goes."},
}};

constexpr bool every_finding_has_help() {
  return std::ranges::all_of(kFindings, [](const FindingRow& finding) {
    return std::ranges::any_of(kHelp, [&](const HelpRow& row) {
      return row.finding == finding.name && !row.help.empty();
    });
  });
}
static_assert(every_finding_has_help(), "each finding of model/findings.h has its row in kHelp");

}  // namespace

std::string_view help_with(std::string_view finding) {
  for (const HelpRow& row : kHelp)
    if (row.finding == finding) return row.help;
  throw std::out_of_range("no finding is called " + std::string(finding));
}

}  // namespace distgrad
