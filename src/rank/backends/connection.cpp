#include "rank/backends/connection.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace distgrad {
namespace {

at::Tensor fresh(const at::Tensor& x) { return x.detach().clone(at::MemoryFormat::Contiguous); }

Shape shape_of(const at::Tensor& x) { return x.sizes().vec(); }

std::string composed_text(const char* collective, ReduceOp op, const at::Tensor& x,
                          const char* of) {
  return std::string(collective) + " " + std::string(name_of(op)) + " of " +
         c10::toString(x.scalar_type()) + ": composed of " + of;
}

}  // namespace

at::Tensor reduced(const std::vector<at::Tensor>& by_rank, ReduceOp op) {
  at::Tensor total = by_rank.front().clone();
  for (std::size_t i = 1; i < by_rank.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
      case ReduceOp::kPremulSum:
        total.add_(by_rank[i]);
        break;
      case ReduceOp::kProduct:
        total.mul_(by_rank[i]);
        break;
      case ReduceOp::kMin:
        total = at::minimum(total, by_rank[i]);
        break;
      case ReduceOp::kMax:
        total = at::maximum(total, by_rank[i]);
        break;
    }
  }
  if (op == ReduceOp::kAvg) total.div_(static_cast<double>(by_rank.size()));
  return total;
}

at::Tensor Connection::all_reduce(const at::Tensor& x, ReduceOp op) {
  if (size_ == 1) return fresh(x);
  if (x.numel() == 0) return fresh(x);
  if (offers_all_reduce(op, x.scalar_type())) {
    at::Tensor out = fresh(x);
    native_all_reduce(out, op);
    return out;
  }
  if (op == ReduceOp::kAvg && offers_all_reduce(ReduceOp::kSum, x.scalar_type())) {
    note_composed(composed_text("all_reduce", op, x, "all_reduce sum"));
    return all_reduce(x, ReduceOp::kSum).div_(static_cast<double>(size_));
  }
  note_composed(composed_text("all_reduce", op, x, "all_gather"));
  return reduced(all_gather(x), op);
}

at::Tensor Connection::reduce(const at::Tensor& x, ReduceOp op, int root) {
  if (size_ == 1 || x.numel() == 0) return fresh(x);
  if (!offers_reduce(op, x.scalar_type())) {
    note_composed(composed_text("reduce", op, x, "all_reduce"));
    return all_reduce(x, op);
  }
  at::Tensor out = fresh(x);
  native_reduce(out, op, root);
  return out;
}

at::Tensor Connection::broadcast(const at::Tensor& x, int root) {
  at::Tensor out = fresh(x);
  if (size_ > 1 && x.numel() > 0) native_broadcast(out, root);
  return out;
}

std::vector<at::Tensor> Connection::all_gather(const at::Tensor& x) {
  if (size_ == 1) return {fresh(x)};
  Shape shape = shape_of(x);
  shape.insert(shape.begin(), size_);
  at::Tensor out = at::empty(shape, x.options().requires_grad(false));
  if (x.numel() > 0) native_all_gather(out, x.detach().contiguous());
  return out.unbind(0);
}

std::vector<std::vector<std::int64_t>> Connection::all_gather_numbers(
    const std::vector<std::int64_t>& own) {
  const at::Tensor row = at::tensor(own, at::kLong).to(device_);
  const at::Tensor rows = at::stack(all_gather(row)).to(at::kCPU).contiguous();
  std::vector<std::vector<std::int64_t>> by_rank;
  const std::int64_t* cell = rows.data_ptr<std::int64_t>();
  for (int r = 0; r < size_; ++r, cell += own.size()) by_rank.emplace_back(cell, cell + own.size());
  return by_rank;
}

std::vector<Shape> Connection::all_gather_shapes(const at::Tensor& x) {
  if (size_ == 1) return {shape_of(x)};
  // Each row has the number of dimensions and up to kMaxDims sizes. The simulator refuses more
  // dimensions.
  constexpr int kMaxDims = 15;
  TORCH_CHECK(x.dim() <= kMaxDims, "a tensor of ", x.dim(), " dimensions; at most ", kMaxDims,
              " are exchanged");
  std::vector<std::int64_t> row(kMaxDims + 1, 0);
  row[0] = x.dim();
  std::copy(x.sizes().begin(), x.sizes().end(), row.begin() + 1);
  std::vector<Shape> shapes;
  for (const auto& other : all_gather_numbers(row))
    shapes.emplace_back(other.begin() + 1, other.begin() + 1 + other[0]);
  return shapes;
}

std::vector<at::Tensor> Connection::all_gather_uneven(const at::Tensor& x) {
  const std::vector<Shape> shapes = all_gather_shapes(x);
  if (std::all_of(shapes.begin(), shapes.end(), [&](const Shape& s) { return s == shapes[0]; }))
    return all_gather(x);
  note_composed("all_gather of uneven shapes: composed of all_gather of padded tensors");
  std::int64_t longest = 0;
  for (const Shape& s : shapes) longest = std::max(longest, element_count(s));
  at::Tensor padded = at::zeros({longest}, x.options().requires_grad(false));
  padded.narrow(0, 0, x.numel()).copy_(x.detach().reshape({-1}));
  std::vector<at::Tensor> parts = all_gather(padded);
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i] = parts[i].narrow(0, 0, element_count(shapes[i])).reshape(shapes[i]);
  return parts;
}

std::vector<at::Tensor> Connection::all_to_all(const std::vector<at::Tensor>& chunks,
                                               const std::vector<Shape>& received) {
  if (size_ == 1) return {fresh(chunks[0])};
  std::vector<std::int64_t> in_counts, out_counts;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& chunk : chunks) {
    in_counts.push_back(chunk.numel());
    flat.push_back(chunk.detach().reshape({-1}));
  }
  std::int64_t total = 0;
  for (const Shape& s : received) {
    out_counts.push_back(element_count(s));
    total += out_counts.back();
  }
  const at::Tensor in = at::cat(flat).contiguous();
  at::Tensor out = at::empty({total}, in.options());
  if (offers_all_to_all()) {
    native_all_to_all(out, in, out_counts, in_counts);
  } else {
    note_composed("all_to_all: composed of all_gather");
    // Only the sender knows what it has for whom, so its counts travel before its chunks.
    const std::vector<std::vector<std::int64_t>> counts = all_gather_numbers(in_counts);
    const std::vector<at::Tensor> all = all_gather_uneven(in);
    std::int64_t at_out = 0;
    for (int source = 0; source < size_; ++source) {
      const std::vector<std::int64_t>& c = counts[source];
      std::int64_t before = 0;
      for (int i = 0; i < rank_; ++i) before += c[i];
      out.narrow(0, at_out, c[rank_]).copy_(all[source].narrow(0, before, c[rank_]));
      at_out += c[rank_];
    }
  }
  std::vector<at::Tensor> parts;
  std::int64_t place = 0;
  for (std::size_t i = 0; i < received.size(); ++i) {
    parts.push_back(out.narrow(0, place, out_counts[i]).reshape(received[i]));
    place += out_counts[i];
  }
  return parts;
}

std::set<std::string> Connection::take_composed() { return std::exchange(composed_, {}); }

}  // namespace distgrad
