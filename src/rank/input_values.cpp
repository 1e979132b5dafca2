#include "rank/input_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "model/random_values.h"
#include "rank/expression/evaluation_scope.h"
#include "rank/expression/scalar_type.h"
#include "rank/side_by_side.h"

namespace distgrad {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 31;  // 16 GiB of float64

// Fills a large value on several cores, since one simulator makes those of all ranks while these
// wait.
void fill(const RandomValues& values, std::span<double> out) {
  constexpr std::size_t kWorthAThread = std::size_t{1} << 20;
  side_by_side(out.size(), kWorthAThread, [&](std::size_t begin, std::size_t count) {
    values.fill(begin, out.subspan(begin, count));
  });
}

// `rank` < 0: the input is one tensor, not a rank's.
at::Tensor random_value(const Program& program, const Input& input, const RandomSpec& spec,
                        int rank) {
  Shape shape;
  std::int64_t count = 1;
  for (const auto& entry : spec.shape) {
    std::int64_t size = 0;
    std::string pointer = input.pointer;
    if (const auto* number = std::get_if<std::int64_t>(&entry)) {
      size = *number;
    } else {
      const Expression& text = std::get<Expression>(entry);
      pointer = text.pointer;
      const Scope scope = rank < 0 ? size_scope(program) : rank_scope(program);
      const at::Tensor value =
          evaluate_alone(program, text, scope, std::max(rank, 0), DType::kFloat64);
      const double given = value.numel() == 1 ? value.item<double>() : -1;
      if (!(given >= 0 && given <= static_cast<double>(kMostElements)) ||
          given != std::floor(given))
        throw InvalidAt(pointer, "a shape entry must be an integer of at least 0");
      size = static_cast<std::int64_t>(given);
    }
    if (size < 0 || (size > 0 && count > kMostElements / size))
      throw InvalidAt(pointer, "the shape has more than 2^31 elements");
    count *= size;
    shape.push_back(size);
  }
  at::Tensor out = at::empty(
      shape, at::device(constructor_device().is_meta() ? at::kMeta : at::kCPU).dtype(at::kDouble));
  if (out.is_meta()) return out;
  const RandomValues values(spec, input.name, rank);
  fill(values, {out.data_ptr<double>(), static_cast<std::size_t>(count)});
  return out;
}

at::Tensor value_on(const Program& program, const Input& input, int rank) {
  const at::ScalarType type = scalar_type(program.dtype);
  const auto converted = [&](at::Tensor x) { return x.scalar_type() == type ? x : x.to(type); };
  if (const auto* array = std::get_if<Array>(&input.value)) return converted(tensor_of(*array));
  if (const auto* by_rank = std::get_if<std::vector<Array>>(&input.value))
    return converted(tensor_of(by_rank->at(std::max(rank, 0))));
  if (const auto* random = std::get_if<RandomSpec>(&input.value))
    return converted(random_value(program, input, *random, rank));
  const Scope scope = rank < 0 ? size_scope(program) : rank_scope(program);
  const at::Tensor value = evaluate_alone(program, std::get<Expression>(input.value), scope,
                                          std::max(rank, 0), DType::kFloat64);
  return converted(value.detach()).clone(at::MemoryFormat::Contiguous);
}

// Follows torch.chunk: pieces of ceil(n / size), of which the last are shorter or empty.
std::vector<std::int64_t> shard_sizes(std::int64_t length, std::int64_t size) {
  const std::int64_t each = (length + size - 1) / size;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < size; ++i)
    sizes.push_back(std::clamp<std::int64_t>(length - i * each, 0, each));
  return sizes;
}

std::vector<at::Tensor> along_axis(const Input& input, const Layout& layout, const at::Tensor& x,
                                   int size) {
  if (layout.kind != Layout::Kind::kShard) {
    Shape shape = x.sizes().vec();
    shape.insert(shape.begin(), size);
    return x.unsqueeze(0).expand(shape).unbind(0);
  }
  const std::int64_t dim = layout.dim < 0 ? layout.dim + x.dim() : layout.dim;
  if (dim < 0 || dim >= x.dim())
    throw InvalidAt(input.pointer, "sharded along dim " + std::to_string(layout.dim) +
                                       ", but the value has " + std::to_string(x.dim()) +
                                       " dimensions");
  return x.split_with_sizes(shard_sizes(x.size(dim), size), dim);
}

}  // namespace

namespace {

at::Tensor distinct_part(at::Tensor value, const Strides& strides) {
  if (strides.empty()) return value;
  TORCH_CHECK(static_cast<std::int64_t>(strides.size()) == value.dim(), strides.size(),
              " strides for a tensor of ", value.dim(), " dimensions");
  for (std::int64_t d = 0; d < value.dim(); ++d)
    if (strides[static_cast<std::size_t>(d)] == 0 && value.size(d) > 1)
      value = value.narrow(d, 0, 1);
  return value;
}

}  // namespace

at::Tensor repeated(const at::Tensor& value, const Strides& strides) {
  return distinct_part(value, strides).expand(value.sizes());
}

at::Tensor laid_in_memory(const at::Tensor& value, const Strides& strides) {
  const at::Tensor distinct = distinct_part(value.detach(), strides);
  if (strides.empty()) return distinct.clone(at::MemoryFormat::Contiguous);
  at::Tensor out = at::empty_strided(distinct.sizes(), strides, distinct.options());
  // Only wrong code reads what lies between the elements; with zeros it reads the same each time.
  if (!out.is_non_overlapping_and_dense())
    at::empty({0}, out.options()).set_(out.storage()).zero_();
  return out.copy_(distinct).expand(value.sizes());
}

at::Tensor tensor_of(const Array& array) {
  at::Tensor out = at::empty(array.shape(), at::kDouble);
  if (array.size() > 0)
    std::memcpy(out.data_ptr<double>(), array.values().data(),
                array.values().size() * sizeof(double));
  return out;
}

Array array_of(const at::Tensor& tensor) {
  // Each of these costs a call through torch's dispatcher even if there is nothing to do.
  at::Tensor x = tensor.requires_grad() ? tensor.detach() : tensor;
  if (!x.is_cpu()) x = x.to(at::kCPU);
  if (x.scalar_type() != at::kDouble) x = x.to(at::kDouble);
  if (!x.is_contiguous()) x = x.contiguous();
  const double* data = x.const_data_ptr<double>();
  // The tensor keeps its memory, so nothing is copied.
  return Array(x.sizes().vec(), data, std::make_shared<at::Tensor>(x));
}

at::Tensor local_value(const Program& program, const Input& input, int rank) {
  return value_on(program, input, rank);
}

at::Tensor full_value(const Program& program, const Input& input) {
  return value_on(program, input, -1);
}

std::vector<at::Tensor> laid_out(const Program& program, const Input& input,
                                 const at::Tensor& full) {
  std::vector<at::Tensor> held{full};
  const std::vector<const Group*> mesh = program.mesh();
  for (std::size_t axis = 0; axis < input.layout.size(); ++axis) {
    const bool whole_world = input.layout[axis].axis.empty();
    const int size =
        whole_world ? program.world_size : static_cast<int>(mesh[axis]->partition[0].size());
    std::vector<at::Tensor> finer;
    for (const at::Tensor& x : held)
      for (at::Tensor& piece : along_axis(input, input.layout[axis].layout, x, size))
        finer.push_back(std::move(piece));
    held = std::move(finer);
  }
  return held;
}

}  // namespace distgrad
