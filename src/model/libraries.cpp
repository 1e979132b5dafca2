#include "model/libraries.h"

#include <algorithm>
#include <array>

#include "model/subject_text.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

// Columns: name, finding, summary. `reference` and `in_place` use no rules, so they have no row.
constexpr std::array kRules = std::to_array<BackwardRuleRow>({
    {"adjoint", "", "the adjoint: what the chain rule asks for"},
    {"identity", "identity-backward", "the rank's own cotangent passed on"},
    {"same_op", "same-op-backward", "the collective's own reduction applied to the cotangents"},
    {"forgotten_op", "forgotten-op", "the adjoint of a sum, whatever the op was"},
    {"own_slice", "own-slice", "only the slice that this rank's own loss saw"},
    {"sum_to_all", "double-reduction", "all_reduce of the cotangents"},
    {"gather", "wrong-slice", "the ranks' own cotangents joined"},
    {"divided", "scaled", "the adjoint divided by the group's size"},
    {"multiplied", "scaled", "the adjoint multiplied by the group's size"},
    {"out_over_x", "zero-input",
     "own cotangent times output over operand, 0 where the operand is 0"},
    {"sum_out_over_x", "zero-input",
     "summed cotangents times output over operand, NaN where the operand is 0"},
    {"own_full_to_ties", "tie", "own cotangent in full to every rank that holds the extremum"},
    {"full_to_ties", "tie", "summed cotangents in full to every rank that holds the extremum"},
    {"partial_sums_off_root", "stale-or-aliased",
     "the adjoint on root; off root what the backend's reduce leaves in the buffer"},
    {"own_part", "missing-reduction", "the adjoint of the rank's own cotangent alone"},
    {"others_part", "missing-reduction",
     "the adjoint of the other ranks' cotangents, without the rank's own"},
    {"reduced_twice", "double-reduction", "the adjoint, summed over the ranks once more"},
    {"next_slice", "wrong-slice", "what the next rank should get"},
    {"previous_slice", "wrong-slice", "what the previous rank should get"},
    {"mirrored_slice", "wrong-slice",
     "what each rank should get, in the reverse order of the ranks"},
    {"first_slice", "wrong-slice", "the first rank's slice on every rank"},
    {"own_slices_summed", "wrong-slice", "the sum over the ranks of what own_slice gives each"},
    {"next_cotangent", "wrong-slice",
     "the adjoint, each rank's cotangent taken for the previous one's"},
    {"previous_cotangent", "wrong-slice",
     "the adjoint, each rank's cotangent taken for the next one's"},
    {"mirrored_cotangent", "wrong-slice",
     "the adjoint of the cotangents in the reverse order of the ranks"},
    {"first_place", "wrong-slice", "the own cotangent in the first rank's place, 0 elsewhere"},
    {"not_exchanged", "wrong-slice", "the rank's own cotangent, not sent back"},
    {"sent_forward", "wrong-slice",
     "the cotangents sent along the pairs once more instead of back"},
    {"all_to_each_tie", "tie",
     "the reduced value's cotangent in full to every rank that holds the extremum"},
    {"all_to_first_tie", "tie",
     "the reduced value's cotangent in full to the first rank that holds the extremum"},
    {"total_out_over_x", "zero-input",
     "the product's cotangent times the product over the operand, NaN where it is 0"},
    {"total_out_over_x_or_0", "zero-input",
     "the product's cotangent times the product over the operand, 0 where it is 0"},
    {"as_stored", "contiguity", "the adjoint of the cotangent read in the order of its memory"},
    {"operand_as_stored", "contiguity",
     "the adjoint at the operand read in the order of its memory"},
    {"overwritten", "stale-or-aliased",
     "the adjoint, written over the cotangent, which others still read"},
    {"in_float32", "precision", "the adjoint with cotangents and result rounded to float32"},
    {"in_float16", "precision", "the adjoint with cotangents and result rounded to float16"},
    {"in_bfloat16", "precision", "the adjoint with cotangents and result rounded to bfloat16"},
    {"none", "no-gradient", "no gradient at all"},
    {"raises", "", "raises in backward"},
});

constexpr std::array kSubjects = std::to_array<SubjectRow>({
    {"reference", "native", "the adjoint, with native collectives in forward and backward"},
    {"in_place", "dispatcher",
     "the plain c10d operator on a clone of the operand, as dist.all_reduce does: measured"},
    {"simclr", "rules", "rule set after Spijkervet/SimCLR GatherLayer"},
    {"simcse", "rules", "rule set after princeton-nlp/SimCSE (the local tensor put into its slot)"},
    {"vissl", "rules",
     "rule set after facebookresearch/vissl GatherLayer (stack, all_reduce, own slice)"},
    {"barlowtwins", "rules",
     "rule set after the GatherLayer used with BarlowTwins (stack, all_reduce, own slice)"},
    {"diffdist", "rules", "rule set after ag14774/diffdist"},
    {"fvcore", "rules", "rule set after facebookresearch/fvcore differentiable collectives"},
    {"torch_nn", "rules", "rule set after torch/distributed/nn/functional.py"},
    {"torch_functional", "rules", "rule set after torch/distributed/_functional_collectives.py"},
    {"megatron", "rules", "rule set after Megatron-LM tensor_parallel/mappings.py"},
    {"flash_attention", "rules", "rule set after flash-attention's AllReduceFunc"},
    {"mpi4jax", "rules", "rule set after mpi4jax allreduce"},
    {"deepspeed", "rules", "rule set after DeepSpeed's all_reduce of model-parallel activations"},
    {"mpi4torch", "rules", "rule set after helmholtz-analytics/mpi4torch"},
    {"tensorflow", "rules", "rule set after TensorFlow's collective_ops"},
    {"jax_pmap", "rules", "rule set after JAX psum, pmean, pmax, pmin under pmap"},
    {"torch_xla", "rules", "rule set after torch_xla's all_reduce autograd"},
    {"mindspore", "rules", "rule set after MindSpore's grad_comm_ops"},
    {"horovod", "rules", "rule set after horovod.torch.mpi_ops, version 0.22 and later"},
});

constexpr std::string_view kOtherOps = "avg,product,min,max,premul_sum";
constexpr std::string_view kTorchOps = "sum,avg,product,min,max,premul_sum";

// subject, kind, ops, rule. Source: semantics, "Backward rules".
constexpr std::array kRows = std::to_array<LibraryRow>({
    {"simclr", kAllGather, "", "own_slice"},
    {"simcse", kAllGather, "", "own_slice"},
    {"vissl", kAllGather, "", "adjoint"},
    {"barlowtwins", kAllGather, "", "adjoint"},
    {"diffdist", kSendRecv, "", "adjoint"},
    {"diffdist", kGather, "", "adjoint"},
    {"diffdist", kScatter, "", "adjoint"},
    {"diffdist", kAllGather, "", "adjoint"},
    {"diffdist", kBroadcast, "", "partial_sums_off_root"},
    {"diffdist", kAllReduce, "", "raises"},
    {"diffdist", kReduce, "", "raises"},
    {"fvcore", kAllReduce, "sum", "adjoint"},
    {"fvcore", kAllGather, "", "adjoint"},
    {"torch_nn", kAllReduce, kTorchOps, "same_op"},
    {"torch_nn", kReduce, kTorchOps, "forgotten_op"},
    {"torch_nn", kReduceScatter, kTorchOps, "forgotten_op"},
    {"torch_nn", kBroadcast, "", "adjoint"},
    {"torch_nn", kScatter, "", "adjoint"},
    {"torch_nn", kGather, "", "adjoint"},
    {"torch_nn", kAllGather, "", "adjoint"},
    {"torch_nn", kAllToAll, "", "adjoint"},
    {"torch_functional", kAllReduce, "sum", "adjoint"},
    {"torch_functional", kAllReduce, "avg,max,min,premul_sum", "adjoint", "2.15"},  // 2.11 raises
    {"torch_functional", kAllReduce, kOtherOps, "raises"},
    {"torch_functional", kAllGather, "", "adjoint"},
    {"torch_functional", kReduceScatter, "sum", "adjoint"},
    {"torch_functional", kReduceScatter, kOtherOps, "raises"},
    {"torch_functional", kAllToAll, "", "adjoint"},
    {"torch_functional", kSendRecv, "", "adjoint"},  // permute_tensor
    {"torch_functional", kBroadcast, "", "identity"},
    {"megatron", kCopy, "", "sum_to_all"},
    {"megatron", kAllReduce, "sum", "identity"},
    {"megatron", kAllGather, "", "own_slice"},
    {"megatron", kSlice, "", "gather"},
    {"megatron", kReduceScatter, "sum", "adjoint"},
    {"megatron", kAllToAll, "", "adjoint"},
    {"flash_attention", kAllReduce, "sum", "identity"},
    {"mpi4jax", kAllReduce, "sum", "identity"},
    {"deepspeed", kAllReduce, "sum", "identity"},
    {"mpi4torch", kAllReduce, "sum", "adjoint"},
    {"mpi4torch", kAllReduce, kOtherOps, "raises"},
    {"tensorflow", kAllReduce, "sum", "adjoint"},
    {"tensorflow", kAllReduce, kOtherOps, "raises"},
    {"jax_pmap", kAllReduce, "sum,avg", "adjoint"},
    {"jax_pmap", kAllReduce, "max,min", "raises"},
    {"torch_xla", kAllReduce, "sum", "identity"},
    {"torch_xla", kAllReduce, "product", "out_over_x"},
    {"torch_xla", kAllReduce, "min,max", "own_full_to_ties"},
    {"mindspore", kAllReduce, "sum", "adjoint"},
    {"mindspore", kAllReduce, "product", "sum_out_over_x"},
    {"mindspore", kAllReduce, "min,max", "full_to_ties"},
    {"mindspore", kBroadcast, "", "identity"},
    {"horovod", kAllReduce, kTorchOps, "same_op"},
    {"horovod", kAllGather, "", "divided"},
    {"horovod", kReduceScatter, "sum", "multiplied"},
});

bool names_op(std::string_view ops, ReduceOp op) {
  if (ops.empty()) return true;
  const std::string_view wanted = name_of(op);
  while (!ops.empty()) {
    const std::size_t comma = std::min(ops.find(','), ops.size());
    if (ops.substr(0, comma) == wanted) return true;
    ops.remove_prefix(std::min(comma + 1, ops.size()));
  }
  return false;
}

// Returns major and minor version as one number.
int version_number(std::string_view text) {
  int parts[2] = {0, 0};
  std::size_t part = 0;
  for (const char c : text) {
    if (c == '.' && ++part == 2) break;
    if (c >= '0' && c <= '9') parts[part] = parts[part] * 10 + (c - '0');
  }
  return parts[0] * 1000 + parts[1];
}

bool is_of(const LibraryRow& row, std::string_view torch) {
  return row.since.empty() || torch.empty() || version_number(torch) >= version_number(row.since);
}

}  // namespace

std::span<const BackwardRuleRow> backward_rules() { return kRules; }
std::span<const SubjectRow> subjects() { return kSubjects; }
std::span<const LibraryRow> library_rows() { return kRows; }

std::optional<std::string_view> rule_of(std::string_view subject, CollectiveKind kind, ReduceOp op,
                                        std::string_view torch) {
  if (is_mutant(subject)) return "native";
  for (const SubjectRow& s : kSubjects)
    if (s.name == subject && s.how != "rules") return s.how;
  for (const LibraryRow& row : kRows)
    if (row.subject == subject && row.kind == kind && names_op(row.ops, op) && is_of(row, torch))
      return row.rule;
  if (kind == CollectiveKind::kCopy || kind == CollectiveKind::kSlice) return "adjoint";
  return std::nullopt;
}

}  // namespace distgrad
