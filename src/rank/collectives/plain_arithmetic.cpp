#include "rank/collectives/plain_arithmetic.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace distgrad {
namespace {

using Plains = std::vector<Plain>;

Plain zeros(const Shape& shape) {
  return {shape, std::vector<double>(static_cast<std::size_t>(element_count(shape)), 0.0)};
}

std::int64_t dim_in(const Call& call, const Shape& shape) {
  const std::int64_t dim = call.spec->dim.value_or(0);
  return dim < 0 ? dim + static_cast<std::int64_t>(shape.size()) : dim;
}

// Splits a shape around a dim: [before, along, after].
struct Around {
  std::int64_t before = 1, along = 1, after = 1;
  Around(const Shape& shape, std::int64_t dim) {
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(shape.size()); ++d)
      (d < dim ? before : d == dim ? along : after) *= shape[d];
  }
  std::size_t at(std::int64_t i, std::int64_t j, std::int64_t k) const {
    return static_cast<std::size_t>((i * along + j) * after + k);
  }
};

// Copies whole[.., begin + j, ..] to part[.., j, ..], or the other way round.
enum class Way { kOut, kIn };
template <Way way, class Whole, class Part>
void copy_along(Whole& whole, Part& part, std::int64_t dim, std::int64_t begin) {
  const Around a(whole.shape, dim), b(part.shape, dim);
  for (std::int64_t i = 0; i < b.before; ++i)
    for (std::int64_t j = 0; j < b.along; ++j)
      for (std::int64_t k = 0; k < b.after; ++k)
        if constexpr (way == Way::kOut)
          part.values[b.at(i, j, k)] = whole.values[a.at(i, begin + j, k)];
        else
          whole.values[a.at(i, begin + j, k)] = part.values[b.at(i, j, k)];
}

Plain cut(const Plain& whole, std::int64_t dim, std::int64_t begin, std::int64_t length) {
  Shape shape = whole.shape;
  shape[dim] = length;
  Plain part = zeros(shape);
  copy_along<Way::kOut>(whole, part, dim, begin);
  return part;
}

Plain concatenated(const Plains& parts, std::int64_t dim) {
  Shape shape = parts[0].shape;
  shape[dim] = 0;
  for (const Plain& part : parts) shape[dim] += part.shape[dim];
  Plain whole = zeros(shape);
  std::int64_t begin = 0;
  for (const Plain& part : parts) {
    copy_along<Way::kIn>(whole, part, dim, begin);
    begin += part.shape[dim];
  }
  return whole;
}

Plain stacked(Plains parts) {
  for (Plain& part : parts) part.shape.insert(part.shape.begin(), 1);
  return concatenated(parts, 0);
}

Plain joined(const Call& call, const Plains& parts) {
  return call.spec->dim ? concatenated(parts, dim_in(call, parts[0].shape)) : stacked(parts);
}

// Returns rank i's piece of what was joined.
Plain piece(const Call& call, const Plains& operands, const Plain& whole, int i) {
  if (!call.spec->dim) {
    Plain part = cut(whole, 0, i, 1);
    part.shape.erase(part.shape.begin());
    return part;
  }
  const std::int64_t dim = dim_in(call, operands[0].shape);
  std::int64_t begin = 0;
  for (int r = 0; r < i; ++r) begin += operands[r].shape[dim];
  return cut(whole, dim, begin, operands[i].shape[dim]);
}

// Returns the lengths into which rank `row` cuts `length`.
std::vector<std::int64_t> chunks(const Call& call, std::int64_t length, int row) {
  const auto& splits = call.spec->splits;
  if (splits.empty()) return std::vector<std::int64_t>(call.size, length / call.size);
  return splits[splits.size() == 1 ? 0 : row];
}

Plain chunk(const Call& call, const Plain& whole, int row, int place) {
  const std::int64_t dim = dim_in(call, whole.shape);
  const auto sizes = chunks(call, whole.shape[dim], row);
  std::int64_t begin = 0;
  for (int i = 0; i < place; ++i) begin += sizes[i];
  return cut(whole, dim, begin, sizes[place]);
}

template <class F>
Plain elementwise(const Plains& x, F f) {
  Plain y = zeros(x[0].shape);
  std::vector<double> column(x.size());
  for (std::size_t e = 0; e < y.values.size(); ++e) {
    for (std::size_t r = 0; r < x.size(); ++r) column[r] = x[r].values[e];
    y.values[e] = f(column);
  }
  return y;
}

double sum(const std::vector<double>& v) {
  double total = 0;
  for (const double x : v) total += x;
  return total;
}

double reduced(const Call& call, const std::vector<double>& v) {
  switch (call.spec->op) {
    case ReduceOp::kSum:
      return sum(v);
    case ReduceOp::kAvg:
      return sum(v) / call.size;
    case ReduceOp::kPremulSum:
      return call.spec->factor * sum(v);
    case ReduceOp::kMin:
      return *std::min_element(v.begin(), v.end());
    case ReduceOp::kMax:
      return *std::max_element(v.begin(), v.end());
    case ReduceOp::kProduct:
      break;
  }
  double product = 1;
  for (const double x : v) product *= x;
  return product;
}

// Returns d reduced / d v[i]; ties share it.
double slope(const Call& call, const std::vector<double>& v, int i) {
  switch (call.spec->op) {
    case ReduceOp::kSum:
      return 1;
    case ReduceOp::kAvg:
      return 1.0 / call.size;
    case ReduceOp::kPremulSum:
      return call.spec->factor;
    case ReduceOp::kMin:
    case ReduceOp::kMax: {
      const double extremum = reduced(call, v);
      return v[i] == extremum ? 1.0 / static_cast<double>(std::count(v.begin(), v.end(), extremum))
                              : 0;
    }
    case ReduceOp::kProduct:
      break;
  }
  double others = 1;
  for (int j = 0; j < static_cast<int>(v.size()); ++j)
    if (j != i) others *= v[j];
  return others;
}

Plain reduction(const Call& call, const Plains& x) {
  return elementwise(x, [&](const std::vector<double>& v) { return reduced(call, v); });
}
Plain total(const Plains& x) { return elementwise(x, sum); }

// Returns the operands' cotangents, where `g` is that of the one result.
Plains reduction_adjoint(const Call& call, const Plains& x, const Plain& g) {
  Plains out;
  for (int i = 0; i < call.size; ++i) {
    Plain y = elementwise(x, [&](const std::vector<double>& v) { return slope(call, v, i); });
    for (std::size_t e = 0; e < y.values.size(); ++e) y.values[e] *= g.values[e];
    out.push_back(std::move(y));
  }
  return out;
}

Plains only_on(int root, const Plain& value, int size) {
  Plains out(size, zeros(value.shape));
  out[root] = value;
  return out;
}

// Returns what each rank gets of an exchange in which rank i sends its chunk j to rank j.
Plains exchanged(const Call& call, const Plains& x) {
  Plains out;
  for (int r = 0; r < call.size; ++r) {
    Plains parts;
    for (int source = 0; source < call.size; ++source)
      parts.push_back(chunk(call, x[source], source, r));
    out.push_back(concatenated(parts, dim_in(call, parts[0].shape)));
  }
  return out;
}

// Undoes the exchange: rank r's array has a chunk from each source.
Plains returned(const Call& call, const Plains& x, const Plains& g) {
  Plains out;
  const std::int64_t dim = dim_in(call, x[0].shape);
  for (int source = 0; source < call.size; ++source) {
    Plains parts;
    for (int r = 0; r < call.size; ++r) {
      std::int64_t begin = 0;
      for (int before = 0; before < source; ++before)
        begin += chunks(call, x[before].shape[dim], before)[r];
      parts.push_back(cut(g[r], dim, begin, chunks(call, x[source].shape[dim], source)[r]));
    }
    out.push_back(concatenated(parts, dim));
  }
  return out;
}

}  // namespace

Plain plain_of(const at::Tensor& tensor) {
  const at::Tensor x = tensor.detach().to(at::kCPU).to(at::kDouble).contiguous();
  return {x.sizes().vec(), {x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel()}};
}

Plains plain_outputs(const Call& call, const Plains& x) {
  const int root = call.spec->root;
  Plains out;
  switch (call.spec->kind) {
    case CollectiveKind::kAllReduce:
      return Plains(call.size, reduction(call, x));
    case CollectiveKind::kReduce:
      return only_on(root, reduction(call, x), call.size);
    case CollectiveKind::kBroadcast:
      return Plains(call.size, x[root]);
    case CollectiveKind::kAllGather:
      return Plains(call.size, joined(call, x));
    case CollectiveKind::kGather:
      return only_on(root, joined(call, x), call.size);
    case CollectiveKind::kReduceScatter:
      for (int r = 0; r < call.size; ++r) out.push_back(chunk(call, reduction(call, x), r, r));
      return out;
    case CollectiveKind::kScatter:
      for (int r = 0; r < call.size; ++r) out.push_back(chunk(call, x[root], r, r));
      return out;
    case CollectiveKind::kAllToAll:
      return exchanged(call, x);
    case CollectiveKind::kSendRecv:
      for (const Plain& own : x) out.push_back(zeros(own.shape));
      for (const auto& [source, to] : call.spec->pairs) out[to] = x[source];
      return out;
    case CollectiveKind::kCopy:
      return x;
    case CollectiveKind::kSlice:
      for (int r = 0; r < call.size; ++r) out.push_back(chunk(call, x[r], r, r));
      return out;
  }
  throw std::logic_error("plain_arithmetic.cpp has no such collective");
}

Plains plain_adjoint(const Call& call, const Plains& x, const Plains& g) {
  const int root = call.spec->root;
  Plains out;
  switch (call.spec->kind) {
    case CollectiveKind::kAllReduce:
      return reduction_adjoint(call, x, total(g));
    case CollectiveKind::kReduce:
      return reduction_adjoint(call, x, g[root]);
    case CollectiveKind::kBroadcast:
      return only_on(root, total(g), call.size);
    case CollectiveKind::kAllGather:
      for (int i = 0; i < call.size; ++i) out.push_back(piece(call, x, total(g), i));
      return out;
    case CollectiveKind::kGather:
      for (int i = 0; i < call.size; ++i) out.push_back(piece(call, x, g[root], i));
      return out;
    case CollectiveKind::kReduceScatter:
      return reduction_adjoint(call, x, concatenated(g, dim_in(call, x[0].shape)));
    case CollectiveKind::kScatter:
      return only_on(root, concatenated(g, dim_in(call, x[0].shape)), call.size);
    case CollectiveKind::kAllToAll:
      return returned(call, x, g);
    case CollectiveKind::kSendRecv:
      for (const Plain& own : x) out.push_back(zeros(own.shape));
      for (const auto& [source, to] : call.spec->pairs)
        for (std::size_t e = 0; e < out[source].values.size(); ++e)
          out[source].values[e] += g[to].values[e];
      return out;
    case CollectiveKind::kCopy:
      return g;
    case CollectiveKind::kSlice:
      for (int r = 0; r < call.size; ++r) {
        Plain whole = zeros(x[r].shape);
        const std::int64_t dim = dim_in(call, x[r].shape);
        const auto sizes = chunks(call, x[r].shape[dim], r);
        std::int64_t begin = 0;
        for (int i = 0; i < r; ++i) begin += sizes[i];
        copy_along<Way::kIn>(whole, g[r], dim, begin);
        out.push_back(std::move(whole));
      }
      return out;
  }
  throw std::logic_error("plain_arithmetic.cpp has no such collective");
}

}  // namespace distgrad
