// The collectives by name, and which options each takes: what a parser, `list collectives`, the
// schema and the ranks in Python need. How a collective is simulated and run stands in
// src/collectives and src/python/distgrad/ranks/collectives, one file each.
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

struct CollectiveTraits {
  CollectiveKind kind;
  std::string_view name;
  std::string_view result;  // what each rank gets, for `list collectives` and the documentation
  bool takes_op = false;    // `op` and, with premul_sum, `factor`
  bool takes_root = false;
  bool takes_dim = false;
  bool dim_is_optional = false;  // absent: stack on a new leading dim; otherwise the default is 0
  bool takes_splits = false;     // a list; for all_to_all a square list of lists
  bool takes_pairs = false;      // required where taken
  bool has_async = false;        // torch's own call takes async_op
};

// In the order of the enumeration.
inline constexpr auto kCollectives = std::to_array<CollectiveTraits>({
    {.kind = CollectiveKind::kAllReduce,
     .name = "all_reduce",
     .result = "reduction over the group",
     .takes_op = true,
     .has_async = true},
    {.kind = CollectiveKind::kReduce,
     .name = "reduce",
     .result = "reduction on root, zeros elsewhere",
     .takes_op = true,
     .takes_root = true,
     .has_async = true},
    {.kind = CollectiveKind::kBroadcast,
     .name = "broadcast",
     .result = "root's operand",
     .takes_root = true,
     .has_async = true},
    {.kind = CollectiveKind::kAllGather,
     .name = "all_gather",
     .result = "without dim stacked on a new leading dim; with dim concatenated there",
     .takes_dim = true,
     .dim_is_optional = true,
     .has_async = true},
    {.kind = CollectiveKind::kGather,
     .name = "gather",
     .result = "as all_gather on root, zeros elsewhere",
     .takes_root = true,
     .takes_dim = true,
     .dim_is_optional = true,
     .has_async = true},
    {.kind = CollectiveKind::kReduceScatter,
     .name = "reduce_scatter",
     .result = "own chunk of the reduction",
     .takes_op = true,
     .takes_dim = true,
     .takes_splits = true,
     .has_async = true},
    {.kind = CollectiveKind::kScatter,
     .name = "scatter",
     .result = "own chunk of root's operand",
     .takes_root = true,
     .takes_dim = true,
     .takes_splits = true,
     .has_async = true},
    {.kind = CollectiveKind::kAllToAll,
     .name = "all_to_all",
     .result = "chunks received, concatenated in rank order",
     .takes_dim = true,
     .takes_splits = true,
     .has_async = true},
    {.kind = CollectiveKind::kSendRecv,
     .name = "send_recv",
     .result = "what was sent here, else zeros of the operand's shape",
     .takes_pairs = true},
    {.kind = CollectiveKind::kCopy, .name = "copy", .result = "the operand itself"},
    {.kind = CollectiveKind::kSlice,
     .name = "slice",
     .result = "own chunk of the own operand",
     .takes_dim = true,
     .takes_splits = true},
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
