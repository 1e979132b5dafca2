#include "audit/battery.h"

#include <fmt/format.h>

#include <algorithm>

#include "audit/maker.h"

namespace distgrad {
namespace {

using Json = AuditProgram::Json;
using Maker = TrialMaker;

void add_ranks(Maker& maker) {
  if (maker.is_of_one_size())
    return maker.add(Aspect::kRanks, fmt::format("{}-ranks", maker.ranks()), maker.base());
  for (const int n : {2, 3, 1, 4, 5})
    maker.add(Aspect::kRanks, fmt::format("{}-ranks", n), maker.base(n));
}

// ---- groups

// Returns true if two groups of equal size are possible, which takes an even number of ranks.
bool has_halves(const Maker& maker) { return maker.ranks_or(4) % 2 == 0 && maker.ranks_or(4) > 2; }

AuditProgram in_blocks(const Maker& maker) {
  const int n = maker.ranks_or(4), size = n / 2;
  AuditProgram p = maker.base(n);
  p.inputs["x"] = maker.random({2 * size, 3});
  p.mesh = {{"dp", 2}, {"tp", size}};
  p.options["group"] = "tp";
  if (maker.traits().takes_pairs) p.options["pairs"] = maker.ring(size);
  return p;
}

void add_out_of_order(Maker& maker) {
  const int n = maker.ranks();
  if (n == 1) return;
  AuditProgram p = maker.base();
  Json ranks = Json::array();
  for (int r = 0; r < n; ++r) ranks.push_back((r + n - 1) % n);
  p.groups = {{"g", Json::array({ranks})}};
  p.options["group"] = "g";
  maker.add(Aspect::kGroups, "out-of-order", p);
}

void add_unequal(Maker& maker) {
  const int n = maker.ranks_or(5), larger = n / 2 + 1, smaller = n - larger;
  if (maker.traits().takes_pairs || n < 3) return;  // pairs would have to fit both groups
  AuditProgram p = maker.base(n);
  p.inputs["x"] = maker.random({larger * smaller, 3});
  Json first = Json::array(), second = Json::array();
  for (int r = 0; r < n; ++r) (r < larger ? first : second).push_back(r);
  p.groups = {{"g", Json::array({first, second})}};
  p.options["group"] = "g";
  maker.add(Aspect::kGroups, "unequal", p);
}

void add_groups(Maker& maker) {
  if (has_halves(maker)) {
    AuditProgram p = in_blocks(maker);
    maker.add(Aspect::kGroups, "blocks", p);
    p.mesh = nullptr;
    p.groups = {{"g", {{"stride", 2}}}};
    p.options["group"] = "g";
    maker.add(Aspect::kGroups, "strided", p);
  }
  add_out_of_order(maker);
  add_unequal(maker);
}

// One rank sends to all others, so that its gradient is a sum.
void add_fan_out(Maker& maker) {
  AuditProgram p = maker.base();
  if (p.ranks < 3) return;
  p.options["pairs"] = Json::array();
  for (int r = 1; r < p.ranks; ++r) p.options["pairs"].push_back({0, r});
  p.may_raise = true;
  maker.add(Aspect::kRoot, "one-source-for-all", p);
}

void add_roots(Maker& maker) {
  if (maker.traits().takes_pairs) add_fan_out(maker);
  if (!maker.traits().takes_root) return;
  for (int root = 1; root < maker.ranks(); root = std::max(root + 1, maker.ranks() - 1)) {
    AuditProgram p = maker.base();
    p.options["root"] = root;
    maker.add(Aspect::kRoot, fmt::format("root-{}", root), p);
  }
  if (!has_halves(maker)) return;
  AuditProgram p = in_blocks(maker);
  p.options["root"] = 1;
  maker.add(Aspect::kRoot, "root-1-of-a-subgroup", p);
}

// ---- tensors

// Returns "dim-1", "last-dim" or "last-dim-but-one".
std::string name_of_dim(int dim) {
  if (dim >= 0) return fmt::format("dim-{}", dim);
  return dim == -1 ? "last-dim" : "last-dim-but-one";
}

void add_dims(Maker& maker) {
  if (!maker.traits().takes_dim) return;
  const std::vector<int> all =
      maker.traits().joins() ? std::vector<int>{0, 1, -1} : std::vector<int>{1, -1, -2};
  for (const int dim : all) {
    AuditProgram p = maker.base();
    if (dim != 0) p.inputs["x"] = maker.random({2, 2 * p.ranks});
    if (dim == -2) p.inputs["x"] = maker.random({2 * p.ranks, 2});
    p.options["dim"] = dim;
    maker.add(Aspect::kDim, name_of_dim(dim), p);
  }
}

void add_dtypes(Maker& maker) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    AuditProgram p = maker.base();
    p.dtype = dtype;
    maker.add(Aspect::kDType, dtype, p);
  }
  // Small integers are the same in every dtype, so a detour over a narrower one shows only in
  // values that do not fit in it. It is not tried in float64, as training takes no detour from it
  // over float32.
  AuditProgram p = maker.base();
  p.dtype = "float32";
  p.inputs["x"] = {{"random", {{"shape", {2 * p.ranks, 3}}, {"kind", "normal"}}}};
  maker.add(Aspect::kDType, "float32-of-many-digits", p);
}

// Returns a value of the result's form that did not go through the collective.
std::string local_twin(const Maker& maker, int ranks) {
  if (maker.traits().joins()) return fmt::format("2 * x.expand({}, {}, 3)", ranks, 2 * ranks);
  return maker.keeps_shape() ? "2 * x" : "2 * x[:2]";
}

// One cotangent goes to two users. Autograd passes the same tensor to both, first to the one that
// came last in forward, so a backward that works in place on its cotangent changes the other's.
void add_shared_cotangents(Maker& maker) {
  AuditProgram p = maker.base();
  p.before = {{"u", local_twin(maker, p.ranks)}};
  p.operand = "3 * x";
  p.after = {{"s", "u + y"}};
  p.loss = "(s * s).sum() + " + weighted("s");
  p.uses_operand = true;
  maker.add(Aspect::kCotangent, "cotangent-shared-with-the-operand", p);
  p = maker.base();
  p.more_collective = "3 * x";
  p.after = {{"s", "y + z"}};
  p.loss = "(s * s).sum() + " + weighted("s");
  maker.add(Aspect::kCotangent, "cotangent-shared-by-two-calls", p);
}

// Rank 0's cotangent lies transposed in memory, with the values that it would have contiguous. A
// backward that passes memory on as it lies then adds elements of different places. `copy` and
// `slice` are left out: for an operand that all ranks hold, the diagnosis cannot tell this from a
// missing sum.
void add_cotangent_that_lies_otherwise(Maker& maker) {
  if (enters_parallel_region(maker.kind())) return;
  AuditProgram p = maker.base();
  p.after = {{"t", "y.transpose(-1, -2) if rank == 0 else y"},
             {"i", "torch.arange(y.numel()).reshape(y.shape)"},
             {"w", "i.transpose(-1, -2).contiguous() if rank == 0 else i"}};
  p.loss = "(t * w).sum()";
  maker.add(Aspect::kCotangent, "transposed-cotangent-on-rank-0", p);
}

void add_cotangents(Maker& maker) {
  AuditProgram p = maker.base();
  p.after = {{"t", "y.transpose(-1, -2)"}};
  p.loss = weighted("t");
  maker.add(Aspect::kCotangent, "transposed-cotangent", p);
  add_cotangent_that_lies_otherwise(maker);
  p = maker.base();
  p.loss = "3.0 * y.sum()";
  maker.add(Aspect::kCotangent, "expanded-cotangent", p);
  p = maker.base();
  p.after = {{"c", "torch.cat([y, torch.zeros_like(y)], -1)"}};
  p.loss = weighted("c");
  maker.add(Aspect::kCotangent, "sliced-cotangent", p);
  p = maker.base();
  const int rank = std::min(1, p.ranks - 1);
  p.loss = fmt::format("{} * (1.0 if rank == {} else 0.0)", weighted("y"), rank);
  maker.add(Aspect::kCotangent, fmt::format("zero-cotangent-but-on-rank-{}", rank), p);
  add_shared_cotangents(maker);
}

void add_operands(Maker& maker) {
  AuditProgram p = maker.base();
  const int rows = 2 * p.ranks;
  p.inputs["x"] = maker.random({3, rows});
  p.operand = "x.transpose(0, 1)";
  maker.add(Aspect::kOperand, "transposed-operand", p);
  p.inputs["x"] = maker.random({rows, 8});
  p.operand = "x[:, ::2]";
  maker.add(Aspect::kOperand, "strided-operand", p);
  p.inputs["x"] = maker.random({1, 3});
  p.operand = fmt::format("x.expand({}, 3)", rows);
  maker.add(Aspect::kOperand, "expanded-operand", p);
  // The root keeps its result for its own backward, and the loss reads it after the call, so a
  // forward that writes into its operand changes both. It has few digits, so that a detour over a
  // narrower dtype changes neither.
  p = maker.base();
  p.mode = "shared";
  p.before = {{"u", "torch.sqrt((x * x + 1) ** 2)"}};
  p.operand = "u";
  p.loss = weighted("y") + " + " + weighted("(u * u)");
  p.one_loss = weighted("y");
  p.uses_operand = true;
  maker.add(Aspect::kOperand, "operand-used-before-and-after", p);
}

void add_graphs(Maker& maker) {
  AuditProgram p = maker.base();
  p.loss = "(y * y).sum() + " + weighted("y") + " + y.sum() * y.mean()";
  maker.add(Aspect::kGraph, "used-twice", p);
  // An addition passes on the very tensor that the backward gave, so both gradients reach the input
  // unchanged. A backward that returns the same buffer each time overwrites the first with the
  // second.
  p = maker.base();
  p.more_collective = "x + 1";
  p.loss = weighted("y") + " + (y * z).sum()";
  maker.add(Aspect::kGraph, "two-calls", p);
  if (!maker.keeps_shape()) return;
  p = maker.base();
  p.more_collective = "0.5 * y";
  p.loss = weighted("z");
  maker.add(Aspect::kGraph, "one-behind-another", p);
}

void add_values(Maker& maker) {
  if (!maker.traits().takes_op) return;
  AuditProgram p = maker.base();
  if (maker.op() == ReduceOp::kProduct) {
    // Gradients go through these zeros: that of a lone zero is the product of the others. Some
    // elements have none, so that a wrong rule does not give only zeros.
    const int some = p.ranks + 1;
    p.before = {{"a", fmt::format("torch.where(torch.arange(x.numel()).reshape(x.shape) % {} == "
                                  "rank, x - x.detach(), x)",
                                  some)}};
    p.operand = "a";
    maker.add(Aspect::kValues, "one-zero", p);
    p.before = {
        {"i", fmt::format("torch.arange(x.numel()).reshape(x.shape) % {}", some)},
        {"a", fmt::format("torch.where((i - rank) * (i - {}) != 0, x - x.detach(), x)", p.ranks)}};
    maker.add(Aspect::kValues, "two-zeros", p);
  } else if (maker.op() == ReduceOp::kMin || maker.op() == ReduceOp::kMax) {
    p.inputs["x"] = {
        {"random", {{"shape", {2 * p.ranks, 3}}, {"kind", "integers"}, {"low", 0}, {"high", 1}}}};
    maker.add(Aspect::kValues, "ties", p);
  }
}

// ---- shapes

// Returns how many elements each rank sends to each. The sizes received, and their sum, differ from
// those sent.
Json uneven_rows(int ranks) {
  Json rows = Json::array();
  for (int r = 0; r < ranks; ++r) {
    std::vector<int> row(static_cast<std::size_t>(ranks), 2);
    const int moved = (r + 1) % 3;
    row.front() -= moved;
    row.back() += moved;
    rows.push_back(row);
  }
  return rows;
}

// Lets every rank receive as much as it sends, but from other ranks than it sends to, so that the
// sizes can be mixed up unnoticed.
Json balanced_rows(int ranks) {
  Json rows = Json::array();
  for (int r = 0; r < ranks; ++r) {
    std::vector<int> row(static_cast<std::size_t>(ranks), 2);
    row[static_cast<std::size_t>(r)] = 1;
    row[static_cast<std::size_t>((r + 1) % ranks)] = 3;
    rows.push_back(row);
  }
  return rows;
}

void add_uneven(Maker& maker) {
  AuditProgram p = maker.base();
  p.is_uneven = true;
  p.inputs["x"] = maker.random({2 * p.ranks, 2});
  if (maker.traits().joins()) {
    p.inputs["x"] = maker.random({"rank + 1", 2});
    p.options["dim"] = 0;
  } else if (maker.traits().exchanges()) {
    p.options["splits"] = uneven_rows(p.ranks);
  } else if (maker.traits().takes_splits) {
    std::vector<int> sizes(static_cast<std::size_t>(p.ranks), 2);
    if (p.ranks > 1) sizes[0] = 1, sizes[1] = 3;
    p.options["splits"] = sizes;
  } else {
    return;
  }
  maker.add(Aspect::kShape, "uneven", p);
  if (!maker.traits().exchanges() || p.ranks < 3) return;
  p.options["splits"] = balanced_rows(p.ranks);
  maker.add(Aspect::kShape, "uneven-but-as-much-in-as-out", p);
}

void add_shapes(Maker& maker) {
  if (!maker.cuts()) {
    AuditProgram p = maker.base();
    p.inputs["x"] = maker.random(Json::array());
    maker.add(Aspect::kShape, "scalar", p);
  }
  AuditProgram p = maker.base();
  p.inputs["x"] = maker.random({0, 3});
  maker.add(Aspect::kShape, kWithoutElements, p);
  p.inputs["x"] = maker.random({2 * p.ranks, 2, 1, 5});
  maker.add(Aspect::kShape, "four-dims", p);
  // An odd number of elements, which no number of ranks divides unless it must: code that pads, or
  // works by chunks, may lose the rest.
  p.inputs["x"] = maker.random({maker.cuts() ? 3 * p.ranks : 2 * p.ranks + 1});
  maker.add(Aspect::kShape, "one-dim", p);
  p.inputs["x"] = maker.random({33 * p.ranks, 300});
  p.loss = "y.sum() + (y[..., 0] * 2).sum()";
  maker.add(Aspect::kShape, "large", p);
  add_uneven(maker);
}

}  // namespace

std::vector<Trial> battery(CollectiveKind kind, ReduceOp op, const BatteryOptions& options) {
  Maker maker(kind, op, options);
  add_ranks(maker);
  add_roots(maker);
  add_dims(maker);
  add_dtypes(maker);
  add_cotangents(maker);
  add_operands(maker);
  add_graphs(maker);
  add_values(maker);
  add_shapes(maker);
  add_groups(maker);
  for (const Aspect aspect : options.requested) add_surroundings(maker, aspect);
  return maker.take();
}

}  // namespace distgrad
