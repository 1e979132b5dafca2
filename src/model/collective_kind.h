// Lists the collectives by name, with the options that each takes and the result that it gives. The
// parser, `list collectives`, the schema, the findings, the audit, the random programs and the
// ranks in Python read it. How a collective is simulated and run is in src/rank/collectives and
// src/python/distgrad/ranks/collectives, one file each.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace distgrad {

enum class CollectiveKind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kReduceScatter,
  kScatter,
  kAllToAll,
  kSendRecv,
  kCopy,
  kSlice,
  kLast = kSlice
};

enum class ReduceOp { kSum, kAvg, kProduct, kMin, kMax, kPremulSum };

// Says which shape each rank's result has.
enum class ResultShape {
  kOperand,    // the shape of its operand
  kJoined,     // the operands stacked on a new leading dim; with `dim` concatenated along it
  kChunk,      // its own chunk of one operand, cut evenly or by `splits`
  kExchanged,  // a chunk of each operand, concatenated; each rank cuts by its own row of `splits`
  kSender      // the shape of the sender's operand
};
inline constexpr std::array<std::string_view, 5> kResultShapeNames = {"operand", "joined", "chunk",
                                                                      "exchanged", "sender"};

// Says what goes in and what comes out where the adjoint is right: P is partial (to be summed), R
// replicated with cotangents that differ by rank, I invariant (one loss), V varying. Source:
// spmd_types; Megatron's f is I->R, its g P->I.
struct LayoutSignature {
  std::string_view own_losses = "V->V";
  std::string_view one_loss = "V->V";
};

struct CollectiveTraits {
  CollectiveKind kind;
  std::string_view name;
  std::string_view result;  // what each rank gets, for `list collectives` and the documentation
  bool takes_op = false;    // `op` and, with premul_sum, `factor`
  bool takes_root = false;
  bool takes_dim = false;
  bool takes_splits = false;  // a list; a square list of lists if ranks exchange chunks
  bool takes_pairs = false;   // required if the collective takes them
  bool has_async = false;     // torch's own call takes async_op
  ResultShape shape = ResultShape::kOperand;
  bool communicates = true;   // in forward; a collective that does not may still communicate in
                              // backward
  bool only_on_root = false;  // zeros elsewhere
  bool same_on_all = false;   // all ranks of a group get the same result
  LayoutSignature signature = {};

  constexpr bool keeps_shape() const { return shape == ResultShape::kOperand; }
  // These may omit `dim`. For the other collectives a missing `dim` is 0.
  constexpr bool joins() const { return shape == ResultShape::kJoined; }
  constexpr bool exchanges() const { return shape == ResultShape::kExchanged; }
};

// The rows are in the order of the enumeration.
inline constexpr auto kCollectives = std::to_array<CollectiveTraits>({
    {.kind = CollectiveKind::kAllReduce,
     .name = "all_reduce",
     .result = "reduction over the group",
     .takes_op = true,
     .has_async = true,
     .same_on_all = true,
     .signature = {"P->R", "P->I"}},
    {.kind = CollectiveKind::kReduce,
     .name = "reduce",
     .result = "reduction on root, zeros elsewhere",
     .takes_op = true,
     .takes_root = true,
     .has_async = true,
     .only_on_root = true,
     .signature = {"P->V", "P->V"}},
    {.kind = CollectiveKind::kBroadcast,
     .name = "broadcast",
     .result = "root's operand",
     .takes_root = true,
     .has_async = true,
     .same_on_all = true,
     .signature = {"V->R", "V->I"}},
    {.kind = CollectiveKind::kAllGather,
     .name = "all_gather",
     .result = "without dim stacked on a new leading dim; with dim concatenated there",
     .takes_dim = true,
     .has_async = true,
     .shape = ResultShape::kJoined,
     .same_on_all = true,
     .signature = {"V->R", "V->I"}},
    {.kind = CollectiveKind::kGather,
     .name = "gather",
     .result = "as all_gather on root, zeros elsewhere",
     .takes_root = true,
     .takes_dim = true,
     .has_async = true,
     .shape = ResultShape::kJoined,
     .only_on_root = true},
    {.kind = CollectiveKind::kReduceScatter,
     .name = "reduce_scatter",
     .result = "own chunk of the reduction",
     .takes_op = true,
     .takes_dim = true,
     .takes_splits = true,
     .has_async = true,
     .shape = ResultShape::kChunk,
     .signature = {"P->V", "P->V"}},
    {.kind = CollectiveKind::kScatter,
     .name = "scatter",
     .result = "own chunk of root's operand",
     .takes_root = true,
     .takes_dim = true,
     .takes_splits = true,
     .has_async = true,
     .shape = ResultShape::kChunk},
    {.kind = CollectiveKind::kAllToAll,
     .name = "all_to_all",
     .result = "chunks received, concatenated in rank order",
     .takes_dim = true,
     .takes_splits = true,
     .has_async = true,
     .shape = ResultShape::kExchanged},
    {.kind = CollectiveKind::kSendRecv,
     .name = "send_recv",
     .result = "what was sent here, else zeros of the operand's shape",
     .takes_pairs = true,
     .shape = ResultShape::kSender},
    {.kind = CollectiveKind::kCopy,
     .name = "copy",
     .result = "the operand itself",
     .communicates = false,
     .signature = {"V->V", "I->R"}},
    {.kind = CollectiveKind::kSlice,
     .name = "slice",
     .result = "own chunk of the own operand",
     .takes_dim = true,
     .takes_splits = true,
     .shape = ResultShape::kChunk,
     .communicates = false,
     .signature = {"R->V", "I->V"}},
});

constexpr bool rows_are_in_order() {
  if (kCollectives.size() != static_cast<std::size_t>(CollectiveKind::kLast) + 1) return false;
  for (std::size_t i = 0; i < kCollectives.size(); ++i)
    if (kCollectives[i].kind != static_cast<CollectiveKind>(i)) return false;
  return true;
}
static_assert(rows_are_in_order(), "kCollectives has a row for each CollectiveKind, in its order");

constexpr const CollectiveTraits& traits(CollectiveKind kind) {
  return kCollectives[static_cast<std::size_t>(kind)];
}
constexpr std::optional<CollectiveKind> collective_named(std::string_view name) {
  for (const CollectiveTraits& t : kCollectives)
    if (t.name == name) return t.kind;
  return std::nullopt;
}

inline constexpr std::array<std::string_view, 6> kReduceOpNames = {"sum", "avg", "product",
                                                                   "min", "max", "premul_sum"};
constexpr std::string_view name_of(ReduceOp op) {
  return kReduceOpNames[static_cast<std::size_t>(op)];
}
constexpr std::optional<ReduceOp> reduce_op_named(std::string_view name) {
  for (std::size_t i = 0; i < kReduceOpNames.size(); ++i)
    if (kReduceOpNames[i] == name) return static_cast<ReduceOp>(i);
  return std::nullopt;
}

}  // namespace distgrad
