// Lists the findings, which explain a wrong gradient. Source: command-line contract, "Findings".
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace distgrad {

struct FindingRow {
  std::string_view name;
  std::string_view meaning;  // one line, for somebody who has read nothing else
  std::string_view help;     // what usually causes it and what to change
  // True if most data does not show the mistake, so that a wrong backward is right in most cases.
  bool is_shown_by_few_data = false;
};

inline constexpr std::array<FindingRow, 28> kFindings = {{
    // name, meaning, help, is_shown_by_few_data
    {"objective", "the gradients are right for another objective than the declared one",
     "Decide what the ranks' losses stand for: their sum, their mean, or one loss that every rank "
     "computes. Then either declare that objective in the scenario, or scale the loss or the "
     "gradients (by the number of ranks, as a rule) to what is declared."},
    {"program", "the distributed program computes another loss or gradient than `single_device`",
     "Compare the distributed program with `single_device` step by step: a wrong split of the "
     "data, a missing or doubled reduction of the loss, or a mean where a sum is meant is the "
     "usual cause. The collectives' backward is not to blame."},
    {"identity-backward",
     "the backward passed the rank's own cotangent on and dropped the other ranks'",
     "Send the cotangents the other way in backward: sum them over the group (all_reduce) or onto "
     "the source (broadcast), or give every rank those of root (reduce). Of an all_reduce with sum "
     "it is right as it is only if the loss is one loss that every rank computes: then declare the "
     "objective `replicated`."},
    {"same-op-backward", "the backward applied the collective's own reduction to the cotangents",
     "Whatever the op, the cotangents are summed over the ranks, and then multiplied by the op's "
     "own derivative: of max, min and product compute that yourself, e.g. from an all_gather and a "
     "local reduction."},
    {"forgotten-op", "the backward is that of a sum, whatever the op was",
     "Divide by the group's size where the op is avg, multiply by the factor where it is "
     "premul_sum; for max, min and product reduce locally what an all_gather brings."},
    {"own-slice", "each rank got only what its own loss saw of its slice",
     "Add up what all ranks' losses saw of each slice: a reduce_scatter of the whole cotangent, or "
     "an all_reduce and then the slice. Right as it is only if every rank computes one and the "
     "same loss from all slices."},
    {"wrong-slice", "another mix of slices or roots than the right one",
     "Look at which part of the cotangent goes to which rank: offsets, the dimension, the root, "
     "uneven splits, and the order of the ranks within the group."},
    {"missing-reduction", "a sum over ranks is left out, or lacks some rank's part",
     "Find the sum that is left out, or the rank whose cotangent is dropped: a detach, a no_grad, "
     "a "
     "list that is filled by another collective without gradient, or a branch that not all ranks "
     "take."},
    {"double-reduction", "cotangents were summed twice",
     "Sum the cotangents in one place only: in the collective's backward or where the gradient is "
     "synchronised, such as DistributedDataParallel or a sync of the input."},
    {"scaled", "the gradient is the truth times a constant: N, 1/N, a group's size or another",
     "Find the factor's origin: a mean where a sum is meant (1/N), a sum over ranks that hold the "
     "same value (N), or a division both in the loss and in the synchronisation."},
    {"zero-input", "the derivative of a product is wrong where an operand is 0",
     "Multiply the other ranks' operands instead of dividing: at a zero the derivative is the "
     "product of the others.",
     true},
    {"tie", "the derivative of min or max is wrong where ranks tie",
     "Share the cotangent evenly among the ranks that tie, so that the shares add up to it once.",
     true},
    {"no-gradient", "the gradient is missing (None) where the truth is not zero",
     "The result does not depend on the input as far as autograd knows: a collective that writes "
     "into a buffer, a detach, .data, .item(), or a no_grad on the way. Use a collective that "
     "autograd knows, or write its backward."},
    {"unsynchronised", "ranks disagree where they must agree",
     "All-reduce the gradient over the ranks that hold the same parameter before it is used, or "
     "wrap the module so that this happens."},
    {"stale-or-aliased",
     "a buffer was reused or never written, or a cotangent was modified in place",
     "Do not reuse or overwrite a buffer that backward still needs, and do not modify a cotangent "
     "in place: clone it first. A buffer from torch.empty must be written on every rank.",
     true},
    {"contiguity", "wrong only where the cotangent or the operand is not contiguous",
     "Call .contiguous() on what is handed to the collective, in forward and in backward: "
     "cotangents of an expand, a transpose or a slice are not contiguous.",
     true},
    {"precision", "a narrower dtype was used on the way",
     "Keep the cotangent in its own dtype: look for a cast, an autocast region or a buffer of a "
     "narrower one. Or accept the error with an explicit tolerance.",
     true},
    {"group-rank", "global ranks and ranks within the group were confused",
     "torch.distributed wants global ranks for src, dst and root, and ranks within the group for "
     "offsets into the group's data: convert with get_global_rank and get_group_rank.",
     true},
    {"wrong-group", "the reduction ran over another group",
     "Pass the same group to the backward's collective as to the forward's; without one it runs "
     "over the world.",
     true},
    {"forward", "the forward value itself differs",
     "Mend the forward first: operand, op, group, root, order of the gathered parts. The "
     "gradients of another function cannot be judged."},
    {"nondeterministic", "two runs of the same case differ",
     "Look for a race: an asynchronous collective whose result is used before wait(), a buffer "
     "that two streams share, or randomness without a seed.",
     true},
    {"truth", "the file's own `truth` is not what the program gives",
     "The scenario's own `truth` and its program contradict each other. Work it out by hand for "
     "one element; the program is simulated in one process without any collective, so the figure "
     "is the likelier mistake."},
    {"other-backward",
     "the backward of a call was measured, and no name fits: its formula is reported",
     "Compare the measured formula with the right one, term by term: it says what each rank's "
     "operand gets from each rank's cotangent."},
    {"other-gradient",
     "a gradient is neither the derivative of the step's loss nor a multiple of it",
     "Look at what the report says p.grad is made of, and at the first module, on the way back "
     "from "
     "the loss, where backward departs."},
    {"shape", "a saved gradient has another shape than the reference's",
     "Compare gradients of the same model, cut in the same way; a tensor may be stored "
     "transposed."},
    {"unknown", "a saved gradient is in one of the two runs only",
     "Compare gradients of the same model: names must be the same in both runs, and what is frozen "
     "or unused in one must be so in the other."},
    {"vacuous", "the match shows nothing: no wrong backward would have changed a gradient",
     "Let the loss depend on what the collectives give, with cotangents that differ by rank and by "
     "element; then a wrong backward shows."},
    {"unexplained", "the gradients are wrong, and it could neither be measured nor recognised why",
     "Run the case with --verbose --full and look at which ranks and elements differ: the mistake "
     "is none of the known ones. Shorten the program step by step until the difference goes."},
}};

static_assert(std::ranges::none_of(kFindings, [](const FindingRow& row) {
  return row.name.empty() || row.meaning.empty() || row.help.empty();
}));

// Returns the finding's index in kFindings, or -1 if there is none of that name.
constexpr int finding_index(std::string_view name) {
  for (std::size_t i = 0; i < kFindings.size(); ++i)
    if (kFindings[i].name == name) return static_cast<int>(i);
  return -1;
}

// Names one of kFindings, or none. A literal that is not in the table does not compile.
class FindingName {
 public:
  constexpr FindingName() = default;
  consteval FindingName(const char* name) : index_(finding_index(name)) {
    if (index_ < 0) throw std::invalid_argument("no such finding");
  }

  static constexpr std::optional<FindingName> named(std::string_view name) {
    FindingName found;
    found.index_ = finding_index(name);
    return found.empty() ? std::nullopt : std::optional(found);
  }

  constexpr bool empty() const { return index_ < 0; }
  constexpr std::string_view text() const { return empty() ? "" : row().name; }
  // Returns the row. The name must not be empty.
  constexpr const FindingRow& row() const { return kFindings[static_cast<std::size_t>(index_)]; }
  operator std::string() const { return std::string(text()); }

  friend constexpr bool operator==(FindingName, FindingName) = default;

 private:
  int index_ = -1;
};

// Returns what usually causes the finding and what to change.
constexpr std::string_view help_with(FindingName finding) { return finding.row().help; }

}  // namespace distgrad
