// Bounds operators that move elements and compute nothing: cells move with them. To find where an
// element of the result comes from, it runs the operator again on tensors of element numbers.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// Numbers element k of the arguments -(2^52 + k), which is exact in double and no value that
// programs fill in.
constexpr double kFirstNumber = -4503599627370496.0;

bool moves(const c10::IValue& value) {
  return value.isTensor() && is_real_floating(value.toTensor());
}

// Holds the elements of all arguments, one after another.
class Sources {
 public:
  void append(const Buffer& buffer) {
    buffers_.push_back(buffer);
    size_ += buffer.size;
    any_ |= buffer.cells != nullptr;
  }
  bool any() const { return any_; }
  double size() const { return static_cast<double>(size_); }
  std::vector<Cell> cells() const {
    std::vector<Cell> all;
    all.reserve(static_cast<std::size_t>(size_));
    for (const Buffer& buffer : buffers_)
      for (std::int64_t i = 0; i < buffer.size; ++i) all.push_back(buffer.cell(i));
    return all;
  }

 private:
  std::vector<Buffer> buffers_;
  std::int64_t size_ = 0;
  bool any_ = false;
};

at::Tensor numbered(const BoundedView& view, std::int64_t first) {
  at::Tensor numbers = at::empty(c10::IntArrayRef(view.sizes), at::kDouble);
  double* data = numbers.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i)
    data[i] = kFirstNumber - static_cast<double>(first + i);
  return numbers;
}

// A broadcast view's zero strides do not matter here, since the numbers are laid out densely.
void rearrange(OpCall& call) {
  bool any_floating = false;
  for (const at::Tensor& result : call.results()) any_floating |= is_real_floating(result);
  if (!any_floating) return;
  Sources sources;
  torch::jit::Stack stack;
  std::vector<std::pair<std::size_t, BoundedView>> replaced;
  for (std::size_t i = 0; i < call.arguments().size(); ++i) {
    const c10::IValue& value = call.arguments()[i];
    if (moves(value)) sources.append(call.read(call.view(static_cast<int>(i))));
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (is_real_floating(tensor)) sources.append(call.read(tensor));
  }
  if (!sources.any()) {
    for (const at::Tensor& result : call.results())
      if (is_real_floating(result)) call.write(result, nullptr);
    return;
  }
  std::int64_t first = 0;
  for (std::size_t i = 0; i < call.arguments().size(); ++i) {
    const c10::IValue& value = call.arguments()[i];
    if (moves(value)) {
      const BoundedView view = call.view(static_cast<int>(i));
      stack.emplace_back(numbered(view, first));
      first += view.numel();
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!is_real_floating(tensor)) {
          list.push_back(tensor);
          continue;
        }
        list.push_back(numbered(call.context().shadows.view_of(tensor), first));
        first += tensor.numel();
      }
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  call.op().callBoxed(stack);
  const std::vector<Cell> source_cells = sources.cells();
  std::size_t r = 0;
  for (const c10::IValue& moved : stack) {
    if (!moved.isTensor() || r >= call.results().size()) break;
    const at::Tensor& result = call.results()[r++];
    if (!is_real_floating(result)) continue;
    const at::Tensor numbers = moved.toTensor().contiguous();
    const double* data = numbers.const_data_ptr<double>();
    const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
    Cell* cells = call.arena().cells(numbers.numel());
    bool any = false;
    for (std::int64_t i = 0; i < numbers.numel(); ++i) {
      const double k = kFirstNumber - data[i];
      if (k >= 0 && k < sources.size() && k == std::floor(k)) {
        cells[i] = source_cells[static_cast<std::size_t>(k)];
      } else if (!fits(call.arithmetic().stored, out.value(i))) {
        cells[i] =
            inexact_cell(out.value(i), call.arithmetic().stored_rounding(std::fabs(out.value(i))));
      }
      any |= !cells[i].plain();
    }
    call.write(result, any ? cells : nullptr);
  }
}

void stack_rule(OpCall& call) {
  rearrange(call);
  if (call.integer("dim", 0) != 0 || !is_real_floating(call.result())) return;
  call.context().shadows.mark_stacked(call.result());
  for (const at::Tensor& operand : call.argument("tensors")->toTensorVector())
    call.context().shadows.mark_operand(operand);
}

// Handles sorting by value: the cells follow the resulting indices, and neighbours that may change
// places are branches.
void ordered(OpCall& call) {
  if (call.results().size() < 2) return;
  const at::Tensor& values = call.result(0);
  const at::Tensor& indices = call.result(1);
  const at::Tensor* self = call.tensor("self");
  if (self == nullptr || !is_real_floating(values)) return;
  const Buffer all = call.read(call.required_view("self"));
  if (all.cells == nullptr || self->dim() == 0) {
    if (self->dim() == 0 && all.cells != nullptr) {
      const Cell cell = all.cell(0);
      return call.write(values, &cell);
    }
    return call.write(values, nullptr);
  }
  const std::int64_t given_dim = call.integer("dim", call.traits().name == "topk" ? -1 : -1);
  const std::int64_t dim = given_dim < 0 ? given_dim + self->dim() : given_dim;
  const at::Tensor numbers =
      numbered(call.required_view("self"), 0).gather(dim, indices).movedim(dim, -1).contiguous();
  const double* data = numbers.const_data_ptr<double>();
  const std::int64_t length = numbers.size(-1);
  Cell* cells = call.arena().cells(numbers.numel());
  const auto source = [&](std::int64_t i) {
    return static_cast<std::int64_t>(kFirstNumber - data[i]);
  };
  const at::Tensor target = values.movedim(dim, -1);
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    cells[i] = all.cell(source(i));
    call.at_element(i, target.sizes());
    if (i % length != 0) call.branch(all.number(source(i - 1)), all.number(source(i)));
  }
  // For topk, compare the last one taken with those left out.
  const std::int64_t whole = self->size(dim);
  if (length != 0 && length < whole) {
    const at::Tensor every = numbered(call.required_view("self"), 0).movedim(dim, -1).contiguous();
    const double* each = every.const_data_ptr<double>();
    for (std::int64_t row = 0; row < numbers.numel() / length; ++row) {
      const double* taken = data + row * length;
      for (std::int64_t k = 0; k < whole; ++k) {
        const double number = each[row * whole + k];
        if (std::find(taken, taken + length, number) != taken + length) continue;
        for (std::int64_t t = 0; t < length; ++t) {
          call.at_element(row * length + t, target.sizes());
          call.branch(all.number(source(row * length + t)),
                      all.number(static_cast<std::int64_t>(kFirstNumber - number)));
        }
      }
    }
  }
  call.write(target, cells);
}

constexpr RuleRow kRearrangingRules[] = {
    // operator, rule
    {"stack", stack_rule},
    {"_stack", stack_rule},
    {"sort", ordered},
    {"topk", ordered},
    {"cat", rearrange},
    {"_cat", rearrange},
    {"index", rearrange},
    {"index_select", rearrange},
    {"index_copy", rearrange},
    {"index_fill", rearrange},
    {"gather", rearrange},
    {"take", rearrange},
    {"masked_select", rearrange},
    {"masked_fill", rearrange},
    {"masked_scatter", rearrange},
    {"where", rearrange},
    {"flip", rearrange},
    {"roll", rearrange},
    {"repeat", rearrange},
    {"repeat_interleave", rearrange},
    {"tril", rearrange},
    {"triu", rearrange},
    {"diag_embed", rearrange},
    {"constant_pad_nd", rearrange},
    {"reflection_pad1d", rearrange},
    {"reflection_pad2d", rearrange},
    {"reflection_pad3d", rearrange},
    {"replication_pad1d", rearrange},
    {"replication_pad3d", rearrange},
    {"replication_pad2d", rearrange},
    {"select_backward", rearrange},
    {"slice_backward", rearrange},
    {"diagonal_backward", rearrange},
    {"select_scatter", rearrange},
    {"slice_scatter", rearrange},
    {"diagonal_scatter", rearrange},
    {"embedding", rearrange},
    {"_reshape_copy", rearrange},
    {"view_copy", rearrange},
    {"expand_copy", rearrange},
    {"unfold_copy", rearrange},
    {"channel_shuffle", rearrange},
    {"pixel_shuffle", rearrange},
    {"pixel_unshuffle", rearrange},
    {"rot90", rearrange},
    {"block_diag", rearrange},
    {"fill_diagonal", rearrange},
    {"split_with_sizes_copy", rearrange},
    {"lift_fresh_copy", rearrange},
    {"_unsafe_view", rearrange},
};

}  // namespace

std::span<const RuleRow> rearranging_rules() { return kRearrangingRules; }

}  // namespace distgrad::tolerance
