// Draws random collectives: kind, op, group, options and an operand that fit each other.

#include <algorithm>
#include <cmath>
#include <vector>

#include "fuzz/draft.h"

namespace distgrad::fuzz {
namespace {

using enum CollectiveKind;

// Holds a call while it is drawn.
struct Call {
  const CollectiveTraits* traits = nullptr;
  const Offer* offer = nullptr;
  ReduceOp op = ReduceOp::kSum;
  const NamedGroup* group = nullptr;
  std::vector<std::vector<int>> lists;
  std::optional<int> dim;
  double factor = 1;
  std::vector<std::vector<std::int64_t>> splits;  // a row a rank of the group, or one
  std::vector<std::pair<int, int>> pairs;
  Json options;

  CollectiveKind kind() const { return traits->kind; }
  std::size_t least_size() const {
    std::size_t least = lists[0].size();
    for (const auto& list : lists) least = std::min(least, list.size());
    return least;
  }
  bool has_one_size() const { return !group || group->has_one_size(); }
  bool cuts() const { return traits->takes_splits; }
  bool joins() const { return traits->joins(); }
  bool exchanges() const { return traits->exchanges(); }
};

std::vector<CollectiveKind> kinds_by_use() {
  std::vector<CollectiveKind> kinds = {kAllReduce, kAllReduce, kAllReduce,     kAllReduce,
                                       kAllGather, kAllGather, kReduceScatter, kReduceScatter};
  for (const CollectiveTraits& t : kCollectives)
    if (std::find(kinds.begin(), kinds.end(), t.kind) == kinds.end()) kinds.push_back(t.kind);
  return kinds;
}

const CollectiveTraits* draw_kind(Draft& draft) {
  // The most used ones come more often.
  static const std::vector<CollectiveKind> kKinds = kinds_by_use();
  for (int attempt = 0; attempt < 100; ++attempt) {
    const CollectiveKind kind = draft.random.pick(kKinds);
    if (draft.choices.offers[static_cast<std::size_t>(kind)].any()) return &traits(kind);
  }
  for (const CollectiveTraits& kind : kCollectives)
    if (draft.choices.offers[static_cast<std::size_t>(kind.kind)].any()) return &kind;
  return nullptr;
}

void draw_op(Draft& draft, Call& call) {
  if (!call.traits->takes_op) return;
  std::vector<ReduceOp> ops;
  for (std::size_t op = 0; op < call.offer->ops.size(); ++op)
    if (call.offer->ops[op]) ops.insert(ops.end(), op == 0 ? 3 : 1, static_cast<ReduceOp>(op));
  call.op = draft.random.pick(ops);
  if (call.op == ReduceOp::kSum && draft.random.chance(50)) return;
  call.options["op"] = name_of(call.op);
  if (call.op != ReduceOp::kPremulSum) return;
  constexpr std::array kFactors = {0.5, 2.0, -1.5, 3.0};
  call.factor = draft.random.pick(kFactors);
  call.options["factor"] = call.factor;
}

void draw_group(Draft& draft, Call& call) {
  if (call.offer->groups && !draft.groups.empty() && draft.random.chance(70))
    call.group = &draft.random.pick(draft.groups);
  call.lists = draft.lists_of(call.group);
  if (call.group) call.options["group"] = call.group->name;
}

void draw_root(Draft& draft, Call& call) {
  if (!call.traits->takes_root || !call.offer->root || draft.random.chance(35)) return;
  call.options["root"] = draft.random.below(call.least_size());
}

void draw_pairs(Draft& draft, Call& call) {
  if (!call.traits->takes_pairs) return;
  Json list = Json::array();
  const auto n = call.least_size();
  for (std::size_t destination = 0; destination < n; ++destination) {
    if (draft.random.chance(20)) continue;
    const std::size_t source =
        draft.random.chance(50) ? (destination + 1) % n : draft.random.below(n);
    call.pairs.emplace_back(static_cast<int>(source), static_cast<int>(destination));
    list.push_back({source, destination});
  }
  call.options["pairs"] = std::move(list);
}

// Returns false if the operand has no dim to work along.
bool draw_dim(Draft& draft, Call& call, const Value& operand) {
  if (!call.traits->takes_dim) return true;
  const int dims = operand.least_dims();
  if (call.cuts() && dims == 0) return false;
  if (dims == 0 || !call.offer->dim || draft.random.chance(call.joins() ? 45 : 40)) return true;
  call.dim = draft.random.between(-dims, dims - 1);
  call.options["dim"] = *call.dim;
  return true;
}

std::size_t place_of_dim(const Call& call, const Shape& shape) {
  const int dim = call.dim.value_or(0);
  return static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim);
}

std::vector<std::int64_t> composition(Random& random, std::int64_t total, std::size_t parts) {
  std::vector<std::int64_t> cuts = {0, total};
  for (std::size_t i = 1; i < parts; ++i)
    cuts.push_back(static_cast<std::int64_t>(random.below(static_cast<std::size_t>(total) + 1)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

std::int64_t extent_on(const Call& call, const Value& operand, int rank) {
  const Shape& shape = operand.shapes[static_cast<std::size_t>(rank)];
  return shape[place_of_dim(call, shape)];
}

bool divides_evenly(const Call& call, const Value& operand) {
  for (const auto& list : call.lists)
    for (const int rank : list)
      if (extent_on(call, operand, rank) % static_cast<std::int64_t>(list.size()) != 0)
        return false;
  return true;
}

// Draws one list for ranks whose extents agree or, for all_to_all, a row for each place, whose
// extents agree over the groups.
bool draw_splits(Draft& draft, Call& call, const Value& operand) {
  if (!call.cuts()) return true;
  const bool even = divides_evenly(call, operand);
  if (even && (!call.offer->splits || draft.random.chance(65))) return true;
  if (!call.offer->splits || !call.has_one_size()) return even;
  const std::size_t n = call.lists[0].size();
  const std::size_t rows = call.exchanges() ? n : 1;
  for (const auto& list : call.lists)
    for (std::size_t place = 0; place < n; ++place) {
      const std::int64_t wanted = extent_on(call, operand, call.lists[0][rows == 1 ? 0 : place]);
      if (extent_on(call, operand, list[place]) != wanted) return even;
    }
  for (std::size_t row = 0; row < rows; ++row)
    call.splits.push_back(
        composition(draft.random, extent_on(call, operand, call.lists[0][row]), n));
  if (call.exchanges())
    call.options["splits"] = call.splits;
  else
    call.options["splits"] = call.splits[0];
  return true;
}

// Returns true if the ranks of each list have shapes that the kind takes together.
bool shapes_fit(const Draft& draft, const Call& call, const Value& operand) {
  // If these have backward collectives of their own, the operands must fit those.
  if (draft.choices.invariant && !call.traits->communicates) return operand.has_one_shape();
  if (!call.traits->communicates || call.traits->takes_pairs) return true;
  const bool may_differ = (call.joins() && call.dim && call.offer->splits) || call.exchanges();
  for (const auto& list : call.lists) {
    Shape first = operand.shapes[static_cast<std::size_t>(list[0])];
    for (const int rank : list) {
      Shape shape = operand.shapes[static_cast<std::size_t>(rank)];
      if (shape.size() != first.size()) return false;
      if (may_differ) shape[place_of_dim(call, shape)] = first[place_of_dim(call, first)];
      if (shape != first) return false;
    }
  }
  return true;
}

std::int64_t chunk_size(const Call& call, std::int64_t extent, std::size_t from, std::size_t to,
                        std::size_t size) {
  if (call.splits.empty()) return extent / static_cast<std::int64_t>(size);
  return call.splits[call.splits.size() == 1 ? 0 : from][to];
}

Shape output_shape(const Call& call, const Value& operand, const std::vector<int>& list,
                   std::size_t place) {
  const auto shape_of = [&](std::size_t member) -> const Shape& {
    return operand.shapes[static_cast<std::size_t>(list[member])];
  };
  Shape shape = shape_of(place);
  const std::size_t n = list.size();
  switch (call.traits->shape) {
    case ResultShape::kJoined: {
      if (!call.dim) {
        shape.insert(shape.begin(), static_cast<std::int64_t>(n));
        return shape;
      }
      std::int64_t total = 0;
      for (std::size_t i = 0; i < n; ++i) total += shape_of(i)[place_of_dim(call, shape)];
      shape[place_of_dim(call, shape)] = total;
      return shape;
    }
    case ResultShape::kChunk: {
      auto& extent = shape[place_of_dim(call, shape)];
      extent = chunk_size(call, extent, place, place, n);
      return shape;
    }
    case ResultShape::kExchanged: {
      std::int64_t total = 0;
      for (std::size_t i = 0; i < n; ++i)
        total += chunk_size(call, shape_of(i)[place_of_dim(call, shape)], i, place, n);
      shape[place_of_dim(call, shape)] = total;
      return shape;
    }
    case ResultShape::kSender:
      for (const auto& [source, destination] : call.pairs)
        if (destination == static_cast<int>(place))
          return shape_of(static_cast<std::size_t>(source));
      return shape;
    case ResultShape::kOperand:
      return shape;
  }
  return shape;
}

double output_largest(const Call& call, double x) {
  double n = 1;
  for (const auto& list : call.lists) n = std::max(n, static_cast<double>(list.size()));
  if (!call.traits->takes_op) return x;
  switch (call.op) {
    case ReduceOp::kSum:
      return n * x;
    case ReduceOp::kProduct:
      return std::max(x, std::pow(x, n));
    case ReduceOp::kPremulSum:
      return n * std::abs(call.factor) * x;
    default:
      return x;
  }
}

// Returns nothing if this draw does not fit.
std::optional<Value> attempt(Draft& draft, const std::string& name) {
  Call call;
  call.traits = draw_kind(draft);
  if (!call.traits) return std::nullopt;
  call.offer = &draft.choices.offers[static_cast<std::size_t>(call.kind())];
  const Value operand = draw_expression(draft, draft.random.pick({0, 0, 0, 1, 1, 1, 2}));
  call.options[std::string(call.traits->name)] = operand.text;
  draw_op(draft, call);
  draw_group(draft, call);
  draw_root(draft, call);
  draw_pairs(draft, call);
  if (!draw_dim(draft, call, operand) || !shapes_fit(draft, call, operand) ||
      !draw_splits(draft, call, operand))
    return std::nullopt;
  Value result{name, operand.shapes, output_largest(call, operand.largest)};
  for (const auto& list : call.lists)
    for (std::size_t place = 0; place < list.size(); ++place)
      result.shapes[static_cast<std::size_t>(list[place])] =
          output_shape(call, operand, list, place);
  if (!draft.fits(result)) return std::nullopt;
  Json step;
  step[name] = std::move(call.options);
  draft.file["steps"].push_back(std::move(step));
  return result;
}

}  // namespace

bool draw_collective(Draft& draft, const std::string& name) {
  for (int i = 0; i < 20; ++i)
    if (auto value = attempt(draft, name)) {
      draft.names.push_back(std::move(*value));
      return true;
    }
  return false;
}

}  // namespace distgrad::fuzz
