// The collectives by name, and which options each takes: what a parser, `list collectives` and the
// schema need. How a collective is simulated and run stands in src/collectives, one file each.
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
  kSlice
};

enum class ReduceOp { kSum, kAvg, kProduct, kMin, kMax, kPremulSum };

struct CollectiveTraits {
  CollectiveKind kind;
  std::string_view name;
  bool takes_op;  // `op` and, with premul_sum, `factor`
  bool takes_root;
  bool takes_dim;
  bool takes_splits;        // a list; for all_to_all a square list of lists
  bool takes_pairs;         // required where taken
  bool dim_is_optional;     // absent means "stack on a new leading dim"; otherwise the default is 0
  std::string_view result;  // what each rank gets, for `list collectives` and the documentation
};

inline constexpr std::array<CollectiveTraits, 11> kCollectives = {{
    // kind, name, op, root, dim, splits, pairs, optional dim, result
    {CollectiveKind::kAllReduce, "all_reduce", true, false, false, false, false, false,
     "reduction over the group"},
    {CollectiveKind::kReduce, "reduce", true, true, false, false, false, false,
     "reduction on root, zeros elsewhere"},
    {CollectiveKind::kBroadcast, "broadcast", false, true, false, false, false, false,
     "root's operand"},
    {CollectiveKind::kAllGather, "all_gather", false, false, true, false, false, true,
     "without dim stacked on a new leading dim; with dim concatenated there"},
    {CollectiveKind::kGather, "gather", false, true, true, false, false, true,
     "as all_gather on root, zeros elsewhere"},
    {CollectiveKind::kReduceScatter, "reduce_scatter", true, false, true, true, false, false,
     "own chunk of the reduction"},
    {CollectiveKind::kScatter, "scatter", false, true, true, true, false, false,
     "own chunk of root's operand"},
    {CollectiveKind::kAllToAll, "all_to_all", false, false, true, true, false, false,
     "chunks received, concatenated in rank order"},
    {CollectiveKind::kSendRecv, "send_recv", false, false, false, false, true, false,
     "what was sent here, else zeros of the operand's shape"},
    {CollectiveKind::kCopy, "copy", false, false, false, false, false, false, "the operand itself"},
    {CollectiveKind::kSlice, "slice", false, false, true, true, false, false,
     "own chunk of the own operand"},
}};

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
