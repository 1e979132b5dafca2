#include "audit/battery.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr AspectRow kAspects[] = {
    {"ranks", "1 to 5 ranks"},
    {"groups", "subgroups: blocks, strided, of unequal sizes, ranks out of order"},
    {"root", "every root"},
    {"dim", "every dim"},
    {"dtype", "float32 and bfloat16"},
    {"shape", "scalars, empty, odd, large and, where allowed, uneven tensors"},
    {"cotangent", "transposed, expanded, sliced cotangents, and zeros on some ranks"},
    {"operand", "transposed, strided and expanded operands"},
    {"graph", "the output used twice, several calls, one call behind another"},
    {"values", "zeros in products, ties in min and max"},
    {"checkpoint", "the program inside torch.utils.checkpoint, reentrant and not", true, true},
    {"autocast", "under torch.autocast of bfloat16: what a matmul gives, and float32", true, true},
    {"async", "async_op=True, waited for", true, true},
    {"compile", "through torch.compile", true, true},
    {"double-backward", "the gradient of the squared norm of the gradients", true, false},
};
static_assert(std::size(kAspects) == kAspectCount);

// An element's weight in the loss: its number.
constexpr const char* kWeighted = "(y * torch.arange(y.numel()).reshape(y.shape)).sum()";

class Battery {
 public:
  Battery(CollectiveKind kind, ReduceOp op) : traits_(traits(kind)), op_(op) {}

  std::vector<Trial> take(std::span<const Aspect> requested) {
    for (const int n : {2, 3, 1, 4, 5}) add(Aspect::kRanks, fmt::format("{}-ranks", n), base(n));
    if (traits_.takes_root) roots();
    if (traits_.takes_dim) dims();
    dtypes();
    cotangents();
    operands();
    graphs();
    values();
    shapes();
    groups();
    if (kind() == CollectiveKind::kCopy || kind() == CollectiveKind::kSlice) parallel_regions();
    for (const Aspect aspect : requested) on_request(aspect);
    return std::move(trials_);
  }

 private:
  struct Program {
    int ranks = 3;
    int group_size = 3;  // of every group that the operand must be cut for
    Json inputs, groups, mesh;
    std::vector<std::pair<std::string, std::string>> before;  // steps
    std::string operand = "x";
    Json options = Json::object();
    std::vector<std::pair<std::string, std::string>> after;
    std::string more_collective;  // the operand of a second call, named z
    std::string loss = fmt::format("(y * y).sum() + {}", kWeighted);
    std::string dtype;
    std::string mode;  // of the subject
    int timeout_s = 30;  // the first call of a torch custom operator imports for seconds, on every rank
  };

  CollectiveKind kind() const { return traits_.kind; }
  bool cuts() const {
    return kind() == CollectiveKind::kReduceScatter || kind() == CollectiveKind::kScatter ||
           kind() == CollectiveKind::kAllToAll || kind() == CollectiveKind::kSlice;
  }
  bool keeps_shape() const {
    return kind() == CollectiveKind::kAllReduce || kind() == CollectiveKind::kReduce ||
           kind() == CollectiveKind::kBroadcast || kind() == CollectiveKind::kSendRecv || kind() == CollectiveKind::kCopy ||
           kind() == CollectiveKind::kAllToAll;
  }
  // All ranks have the same result.
  bool agrees() const {
    return kind() == CollectiveKind::kAllReduce || kind() == CollectiveKind::kAllGather ||
           kind() == CollectiveKind::kBroadcast;
  }

  Json random(Json shape) const {
    // Without ties or zeros, which are an aspect of their own.
    if (op_ == ReduceOp::kMin || op_ == ReduceOp::kMax) return {{"random", {{"shape", shape}, {"kind", "normal"}}}};
    const int low = op_ == ReduceOp::kProduct ? 1 : -3;
    return {{"random", {{"shape", shape}, {"kind", "integers"}, {"low", low}, {"high", 3}}}};
  }

  Json ring(int size) const {
    Json pairs = Json::array();
    for (int r = 0; r < size; ++r) pairs.push_back({r, (r + 1) % size});
    return pairs;
  }

  Program base(int ranks) const {
    Program p;
    p.ranks = ranks;
    p.group_size = ranks;
    p.inputs["x"] = random({2 * ranks, 3});
    if (traits_.takes_pairs) p.options["pairs"] = ring(ranks);
    return p;
  }

  Json call(const Program& p, const std::string& operand) const {
    Json call;
    call[std::string(traits_.name)] = operand;
    if (traits_.takes_op) call["op"] = std::string(name_of(op_));
    if (traits_.takes_op && op_ == ReduceOp::kPremulSum) call["factor"] = 0.5;
    for (const auto& [key, value] : p.options.items()) call[key] = value;
    return call;
  }

  Json document(const Program& p, const std::string& name, Trial::Loss loss) const {
    Json file;
    file["note"] = fmt::format("audit of {}: {}", traits_.name, name);
    if (!p.mesh.is_null()) file["mesh"] = p.mesh;
    else file["world_size"] = p.ranks;
    if (!p.groups.is_null()) file["groups"] = p.groups;
    if (!p.dtype.empty()) file["dtype"] = p.dtype;
    file["inputs"] = p.inputs;
    Json steps = Json::array();
    for (const auto& [step, text] : p.before) steps.push_back({{step, text}});
    steps.push_back({{"y", call(p, p.operand)}});
    if (!p.more_collective.empty()) steps.push_back({{"z", call(p, p.more_collective)}});
    for (const auto& [step, text] : p.after) steps.push_back({{step, text}});
    file["steps"] = steps;
    const bool one = loss == Trial::Loss::kOneLoss;
    const bool is_whole = p.loss.starts_with("squared_gradient_norm");  // then the ranks' weights are inside
    file["loss"] = one || is_whole ? p.loss : fmt::format("({}) * (rank + 1)", p.loss);
    if (!one) file["objective"] = "sum";
    else if (p.mesh.is_null()) file["objective"] = "replicated";
    else file["objective"] = {{"dp", "sum"}, {"tp", "replicated"}};
    file["timeout_s"] = p.timeout_s;
    return file;
  }

  // What every rank has in common is no longer each rank's share: under one loss it cannot go through a collective again.
  bool can_be_one_loss(const Program& p) const {
    const bool chained = p.more_collective.find('y') != std::string::npos;
    const bool one_group = p.groups.is_null() || !p.mesh.is_null();  // along a group of several it needs a mesh
    return agrees() && one_group && !chained && p.loss.find("rank") == std::string::npos;
  }

  void add_for_sum(Aspect aspect, const std::string& name, const Program& p) {
    trials_.push_back({aspect, Trial::Loss::kSum, name, document(p, name, Trial::Loss::kSum).dump(1), false, p.mode});
  }

  void add(Aspect aspect, const std::string& name, const Program& p) {
    add_for_sum(aspect, name, p);
    if (!can_be_one_loss(p)) return;
    const std::string one = name + "-one-loss";
    trials_.push_back({aspect, Trial::Loss::kOneLoss, one, document(p, one, Trial::Loss::kOneLoss).dump(1), false, p.mode});
  }

  void roots() {
    for (const int root : {1, 2}) {
      Program p = base(3);
      p.options["root"] = root;
      add(Aspect::kRoot, fmt::format("root-{}", root), p);
    }
    Program p = in_blocks();
    p.options["root"] = 1;
    add(Aspect::kRoot, "root-1-of-a-subgroup", p);
  }

  void dims() {
    const std::vector<int> all = traits_.dim_is_optional ? std::vector<int>{0, 1, -1} : std::vector<int>{1, -1, -2};
    for (const int dim : all) {
      Program p = base(3);
      if (dim != 0) p.inputs["x"] = random({2, 6});
      if (dim == -2) p.inputs["x"] = random({6, 2});
      p.options["dim"] = dim;
      add(Aspect::kDim, fmt::format("dim-{}", dim), p);
    }
  }

  void dtypes() {
    for (const char* dtype : {"float32", "bfloat16"}) {
      Program p = base(3);
      p.dtype = dtype;
      add(Aspect::kDType, dtype, p);
    }
    // Small integers are the same in every dtype: a detour over a narrower one is seen by what does not fit in it. Not in
    // float64, from which float32 is a detour that training does not take.
    Program p = base(3);
    p.dtype = "float32";
    p.inputs["x"] = {{"random", {{"shape", {6, 3}}, {"kind", "normal"}}}};
    add(Aspect::kDType, "float32-of-many-digits", p);
  }

  void cotangents() {
    Program p = base(3);
    p.after = {{"t", "y.transpose(-1, -2)"}};
    p.loss = "(t * torch.arange(t.numel()).reshape(t.shape)).sum()";
    add(Aspect::kCotangent, "transposed-cotangent", p);
    p = base(3);
    p.loss = "3.0 * y.sum()";
    add(Aspect::kCotangent, "expanded-cotangent", p);
    p = base(3);
    p.after = {{"c", "torch.cat([y, torch.zeros_like(y)], -1)"}};
    p.loss = "(c * torch.arange(c.numel()).reshape(c.shape)).sum()";
    add(Aspect::kCotangent, "sliced-cotangent", p);
    p = base(3);
    p.loss = fmt::format("{} * (1.0 if rank == 1 else 0.0)", kWeighted);
    add(Aspect::kCotangent, "zero-cotangent-but-on-rank-1", p);
  }

  void operands() {
    Program p = base(3);
    p.inputs["x"] = random({3, 6});
    p.operand = "x.transpose(0, 1)";
    add(Aspect::kOperand, "transposed-operand", p);
    p.inputs["x"] = random({6, 8});
    p.operand = "x[:, ::2]";
    add(Aspect::kOperand, "strided-operand", p);
    p.inputs["x"] = random({1, 3});
    p.operand = "x.expand(6, 3)";
    add(Aspect::kOperand, "expanded-operand", p);
  }

  void graphs() {
    Program p = base(3);
    p.loss = fmt::format("(y * y).sum() + {} + y.sum() * y.mean()", kWeighted);
    add(Aspect::kGraph, "used-twice", p);
    p = base(3);
    p.more_collective = "2 * x - 1";
    p.loss = fmt::format("{} + (y * z).sum()", kWeighted);
    add(Aspect::kGraph, "two-calls", p);
    if (!keeps_shape()) return;
    p = base(3);
    p.more_collective = "0.5 * y";
    p.loss = "(z * torch.arange(z.numel()).reshape(z.shape)).sum()";
    add(Aspect::kGraph, "one-behind-another", p);
  }

  void values() {
    if (!traits_.takes_op) return;
    Program p = base(3);
    if (op_ == ReduceOp::kProduct) {
      // Zeros that a gradient goes through: that of the one zero is the product of the others. Every fourth element has none,
      // so that not all that a wrong rule gives is zero.
      p.before = {{"a", "torch.where(torch.arange(x.numel()).reshape(x.shape) % 4 == rank, x - x.detach(), x)"}};
      p.operand = "a";
      add(Aspect::kValues, "one-zero", p);
      p.before = {{"i", "torch.arange(x.numel()).reshape(x.shape) % 4"},
                  {"a", "torch.where((i - rank) * (i - 3) != 0, x - x.detach(), x)"}};
      add(Aspect::kValues, "two-zeros", p);
    } else if (op_ == ReduceOp::kMin || op_ == ReduceOp::kMax) {
      p.inputs["x"] = {{"random", {{"shape", {6, 3}}, {"kind", "integers"}, {"low", 0}, {"high", 1}}}};
      add(Aspect::kValues, "ties", p);
    }
  }

  void shapes() {
    if (!cuts()) {
      Program p = base(3);
      p.inputs["x"] = random(Json::array());
      add(Aspect::kShape, "scalar", p);
    }
    Program p = base(3);
    p.inputs["x"] = random({0, 3});
    add(Aspect::kShape, "empty", p);
    p.inputs["x"] = random({6, 2, 1, 5});
    add(Aspect::kShape, "four-dims", p);
    // An odd number of elements, which no number of ranks divides where it need not: who pads, or works by chunks, may lose
    // the rest.
    p.inputs["x"] = random({cuts() ? 9 : 7});
    add(Aspect::kShape, "one-dim", p);
    p.inputs["x"] = random({99, 300});
    p.loss = "y.sum() + (y[..., 0] * 2).sum()";
    add(Aspect::kShape, "large", p);
    uneven();
  }

  void uneven() {
    Program p = base(3);
    if (traits_.dim_is_optional) {
      p.inputs["x"] = random({"rank + 1", 2});
      p.options["dim"] = 0;
    } else if (kind() == CollectiveKind::kAllToAll) {
      p.inputs["x"] = random({6, 2});
      p.options["splits"] = {{1, 2, 3}, {3, 2, 1}, {0, 4, 2}};
    } else if (traits_.takes_splits) {
      p.inputs["x"] = random({6, 2});
      p.options["splits"] = {1, 3, 2};
    } else {
      return;
    }
    add(Aspect::kShape, "uneven", p);
  }

  Program in_blocks() const {
    Program p = base(4);
    p.inputs["x"] = random({4, 3});
    p.mesh = {{"dp", 2}, {"tp", 2}};
    p.options["group"] = "tp";
    if (traits_.takes_pairs) p.options["pairs"] = ring(2);
    return p;
  }

  void groups() {
    add(Aspect::kGroups, "blocks", in_blocks());
    Program p = in_blocks();
    p.mesh = nullptr;
    p.groups = {{"g", {{"stride", 2}}}};
    p.options["group"] = "g";
    add(Aspect::kGroups, "strided", p);
    p = base(3);
    p.groups = {{"g", {{2, 0, 1}}}};
    p.options["group"] = "g";
    add(Aspect::kGroups, "out-of-order", p);
    if (traits_.takes_pairs) return;  // they would have to fit both groups
    p = base(5);
    p.inputs["x"] = random({6, 3});
    p.groups = {{"g", {{0, 1, 2}, {3, 4}}}};
    p.options["group"] = "g";
    add(Aspect::kGroups, "unequal", p);
  }

  // Megatron's f and scatter: a weight that every rank holds enters a parallel region, and must get its whole gradient
  // on every rank. The region ends in an all_reduce that passes the cotangent on.
  void parallel_regions() {
    for (const int n : {2, 3}) parallel_region(base(n), fmt::format("parallel-region-of-{}", n));
    if (kind() != CollectiveKind::kSlice) return;
    for (const int n : {2, 3}) {  // what cuts along the last dim only, as Megatron does, is asked here
      Program p = base(n);
      p.inputs["x"] = random({3, 2 * n});
      p.options["dim"] = -1;
      parallel_region(p, fmt::format("parallel-region-of-{}-along-dim--1", n));
    }
  }

  void parallel_region(Program p, const std::string& name) {
    p.inputs["x"]["layout"] = "invariant";
    Json file = document(p, name, Trial::Loss::kOneLoss);
    file["steps"].push_back({{"total", {{"all_reduce", "((y * y).sum() + " + std::string(kWeighted) + ") * (rank + 1)"}}}});
    file["loss"] = "total";
    const Aspect aspect = p.options.contains("dim") ? Aspect::kDim : Aspect::kRanks;
    trials_.push_back({aspect, Trial::Loss::kOneLoss, name, file.dump(1), true, ""});
  }

  void on_request(Aspect aspect) {
    switch (aspect) {
      case Aspect::kCheckpoint: return checkpoints();
      case Aspect::kAutocast: return autocasts();
      case Aspect::kAsync: return asyncs();
      case Aspect::kCompile: return compiles();
      case Aspect::kDoubleBackward: return double_backwards();
      default: return;  // always tried
    }
  }

  // What a mode needs may have to be imported first, for which the machine may take its time.
  Program in_mode(const std::string& mode, int ranks) const {
    Program p = base(ranks);
    p.mode = mode;
    p.timeout_s = mode == "compile" ? 120 : 60;
    return p;
  }

  // The losses are not linear, so that what is computed anew counts.
  void checkpoints() {
    for (const char* mode : {"checkpoint", "checkpoint-reentrant"}) add(Aspect::kCheckpoint, mode, in_mode(mode, 2));
    Program p = in_mode("checkpoint", 3);
    p.more_collective = "2 * x - 1";
    p.loss = fmt::format("{} + (y * z).sum()", kWeighted);
    add(Aspect::kCheckpoint, "checkpoint-of-two-calls", p);
  }

  // Values that bfloat16 holds exactly, their sums and products too, where a matmul has made it of them; and float32 that it
  // does not hold. Without ties and zeros. A collective that keeps its operand's precision has the exact gradient of both.
  void autocasts() {
    Program p = in_mode("autocast", 2);
    p.dtype = "float32";
    p.loss = kWeighted;
    p.inputs["x"] = {{"by_rank", {{{1, 4}, {3, 2}}, {{2, 3}, {1, 4}}}}};
    p.operand = "x @ torch.eye(2)";
    add(Aspect::kAutocast, "autocast-of-a-matmul", p);
    p.inputs["x"] = {{"by_rank", {{{257, 1026}, {515, 260}}, {{258, 771}, {1025, 517}}}}};
    p.operand = "x";
    p.loss = "(y * y).sum() / 2";
    add(Aspect::kAutocast, "autocast-of-float32", p);
  }

  void asyncs() {
    add(Aspect::kAsync, "async", in_mode("async", 3));
    if (!traits_.takes_dim) return;
    Program p = in_mode("async", 3);
    p.inputs["x"] = random({2, 6});
    p.options["dim"] = 1;
    add(Aspect::kAsync, "async-along-dim-1", p);
  }

  void compiles() {
    add(Aspect::kCompile, "compile", in_mode("compile", 2));
    Program p = in_mode("compile", 2);
    p.after = {{"t", "y.transpose(-1, -2)"}};
    p.loss = "(t * torch.arange(t.numel()).reshape(t.shape)).sum()";
    add(Aspect::kCompile, "compile-transposed-cotangent", p);
  }

  // The first backward is that of every rank's loss, so that its gradients differ by rank, and depend on all operands.
  void double_backwards() {
    for (const int n : {2, 3}) {
      Program p = base(n);
      p.loss = fmt::format("squared_gradient_norm(((y * y).sum() + {}) * (rank + 1))", kWeighted);
      add_for_sum(Aspect::kDoubleBackward, n == 2 ? "double-backward" : "double-backward-3-ranks", p);
    }
  }

  const CollectiveTraits& traits_;
  ReduceOp op_;
  std::vector<Trial> trials_;
};

}  // namespace

std::span<const AspectRow> aspects() { return kAspects; }

std::vector<Trial> battery(CollectiveKind kind, ReduceOp op, std::span<const Aspect> requested) {
  return Battery(kind, op).take(requested);
}

}  // namespace distgrad
