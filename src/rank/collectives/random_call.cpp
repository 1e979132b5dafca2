#include "rank/collectives/random_call.h"

namespace distgrad::testing {
namespace {

at::Tensor values(const Shape& shape, int rank, at::ScalarType type, bool with_zeros_and_ties) {
  const std::int64_t n = element_count(shape);
  // Holds 1 to 5 in an order of each rank's own: no two ranks alike, no zero, no neighbours tie.
  at::Tensor x = (at::arange(n, at::kDouble) * (rank + 2) + rank * 3).remainder(5) + 1;
  x = x * (at::arange(n, at::kDouble).remainder(3).eq(rank % 3).to(at::kDouble) * -2 + 1);
  if (with_zeros_and_ties && n > 0) {
    x[0] = 4;                          // every rank ties there
    if (n > 1 && rank < 2) x[1] = 0;   // two zeros
    if (n > 2 && rank == 1) x[2] = 0;  // one zero
  }
  return x.reshape(shape).to(type);
}

CollectiveCall spec_of(CollectiveKind kind) {
  CollectiveCall spec;
  spec.kind = kind;
  return spec;
}

class Collector {
 public:
  Collector(int size, at::ScalarType type, bool special)
      : size_(size), type_(type), special_(special) {}

  void add(const std::string& name, const CollectiveCall& spec, const std::vector<Shape>& shapes) {
    Sample sample{name, spec, {}};
    for (int r = 0; r < size_; ++r)
      sample.operands.push_back(values(shapes[r], r, type_, special_));
    out.push_back(std::move(sample));
  }
  void add(const std::string& name, const CollectiveCall& spec, const Shape& shape) {
    add(name, spec, std::vector<Shape>(size_, shape));
  }

  std::vector<Sample> out;

 private:
  int size_;
  at::ScalarType type_;
  bool special_;
};

}  // namespace

std::vector<Sample> samples(int size, at::ScalarType type, bool with_zeros_and_ties) {
  Collector c(size, type, with_zeros_and_ties);
  const std::int64_t n = size;
  for (std::size_t o = 0; o < kReduceOpNames.size(); ++o) {
    const auto op = static_cast<ReduceOp>(o);
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
      CollectiveCall spec = spec_of(kind);
      spec.op = op;
      spec.factor = 3;
      const std::string name = std::string(traits(kind).name) + " " + std::string(name_of(op));
      spec.root = kind == CollectiveKind::kReduce ? size - 1 : 0;
      if (kind != CollectiveKind::kReduceScatter) {
        c.add(name + " [2,3]", spec, {2, 3});
        c.add(name + " scalar", spec, Shape{});
        c.add(name + " empty", spec, {0, 2});
        continue;
      }
      c.add(name + " dim 0", spec, {2 * n, 3});
      spec.dim = -1;
      c.add(name + " dim -1", spec, {3, n});
      spec.dim = 0;
      spec.splits = {{}};
      for (int r = 0; r < size; ++r) spec.splits[0].push_back(r);  // rank 0 gets nothing
      c.add(name + " splits", spec, {n * (n - 1) / 2, 2});
    }
  }
  for (int root : {0, size - 1}) {
    CollectiveCall spec = spec_of(CollectiveKind::kBroadcast);
    spec.root = root;
    const std::string at_root = " root " + std::to_string(root);
    c.add("broadcast" + at_root, spec, {2, 3});
    spec = spec_of(CollectiveKind::kScatter);
    spec.root = root;
    c.add("scatter" + at_root, spec, {n, 2});
    spec.dim = 1;
    spec.splits = {{}};
    for (int r = 0; r < size; ++r) spec.splits[0].push_back(size - 1 - r);
    c.add("scatter splits" + at_root, spec, {2, n * (n - 1) / 2});
    spec = spec_of(CollectiveKind::kGather);
    spec.root = root;
    c.add("gather stacked" + at_root, spec, {2, 3});
  }
  std::vector<Shape> uneven;
  for (int r = 0; r < size; ++r) uneven.push_back({2, r});  // rank 0 has nothing
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kGather}) {
    CollectiveCall spec = spec_of(kind);
    c.add(std::string(traits(kind).name) + " stacked", spec, {3, 2});
    c.add(std::string(traits(kind).name) + " stacked scalar", spec, Shape{});
    spec.dim = 0;
    c.add(std::string(traits(kind).name) + " dim 0", spec, {3, 2});
    spec.dim = -1;
    c.add(std::string(traits(kind).name) + " uneven", spec, uneven);
  }
  CollectiveCall spec = spec_of(CollectiveKind::kAllToAll);
  c.add("all_to_all", spec, {n, 2});
  spec.dim = 1;
  for (int r = 0; r < size; ++r) {
    spec.splits.emplace_back();
    for (int to = 0; to < size; ++to) spec.splits[r].push_back((r * to + r) % 3);
  }
  std::vector<Shape> cut;
  for (int r = 0; r < size; ++r) {
    std::int64_t length = 0;
    for (const std::int64_t s : spec.splits[r]) length += s;
    cut.push_back({2, length});
  }
  c.add("all_to_all uneven", spec, cut);
  spec = spec_of(CollectiveKind::kSendRecv);
  for (int r = 0; r < size; ++r) spec.pairs.emplace_back(r, (r + 1) % size);
  c.add("send_recv ring", spec, uneven);
  spec.pairs = {{0, 0}};
  for (int r = 1; r < size; ++r)
    spec.pairs.emplace_back(size - 1, r);  // one source often, also to itself
  c.add("send_recv fan", spec, {2, 2});
  spec.pairs.clear();
  c.add("send_recv nothing", spec, Shape{2});
  c.add("copy", spec_of(CollectiveKind::kCopy), {2, 2});
  spec = spec_of(CollectiveKind::kSlice);
  spec.dim = 1;
  c.add("slice", spec, {2, 2 * n});
  return std::move(c.out);
}

std::vector<at::Tensor> cotangents_for(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> out;
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    const at::Tensor& y = outputs[r];
    at::Tensor g = (at::arange(y.numel(), at::kDouble) * (r + 3) + 2 * r).remainder(7) - 2;
    Shape reversed(y.sizes().rbegin(), y.sizes().rend());
    std::vector<std::int64_t> back;
    for (std::int64_t d = y.dim() - 1; d >= 0; --d) back.push_back(d);
    out.push_back(g.to(y.scalar_type()).reshape(reversed).permute(back));
  }
  return out;
}

}  // namespace distgrad::testing
