#include "tolerance/op_call.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace distgrad::tolerance {
namespace {

OpCall* current = nullptr;

std::string index_text(std::int64_t element, c10::IntArrayRef sizes) {
  Dims index(sizes.size(), 0);
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = sizes[d] ? element % sizes[d] : 0;
    element = sizes[d] ? element / sizes[d] : 0;
  }
  std::string text = "[";
  for (std::size_t d = 0; d < index.size(); ++d) text += (d ? ", " : "") + std::to_string(index[d]);
  return text + "]";
}

std::string short_text(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2g", value);
  return buffer;
}

}  // namespace

std::string shortest(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

bool is_real_floating(c10::ScalarType type) {
  return type == c10::ScalarType::Double || type == c10::ScalarType::Float ||
         type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}
bool is_real_floating(const at::Tensor& tensor) {
  return tensor.defined() && is_real_floating(tensor.scalar_type());
}

OpTraits::OpTraits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  name = schema.name().substr(schema.name().find("::") + 2);
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    arguments.push_back(argument.name());
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite())
      written.push_back(static_cast<int>(i));
  }
  if (!written.empty() && name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_')
    name.pop_back();
  if (written.empty() && !schema.returns().empty()) {
    is_view =
        std::all_of(schema.returns().begin(), schema.returns().end(),
                    [](const c10::Argument& returned) { return returned.alias_info() != nullptr; });
  }
}

OpCall::OpCall(Context& context, const c10::OperatorHandle& op, const OpTraits& traits,
               c10::ArrayRef<c10::IValue> arguments)
    : context_(context), op_(op), traits_(traits), arguments_(arguments.begin(), arguments.end()) {
  in_backward_ = torch::autograd::get_current_graph_task_id() != -1;
  for (const int i : traits.written) {
    if (!arguments_[i].isTensor() || !arguments_[i].toTensor().defined()) continue;
    const at::Tensor& target = arguments_[i].toTensor();
    BoundedView view = context.shadows.view_of(target);
    if (view.data == nullptr) {
      before_.emplace_back(i, std::move(view));
      continue;
    }
    const Buffer buffer = load(arena(), view, view.sizes, arithmetic_for(context.dtype, view.type));
    // Copies, since what the storage holds is about to change.
    double* values = arena().doubles(buffer.size);
    for (std::int64_t k = 0; k < buffer.size; ++k) values[k] = buffer.value(k);
    view.data = values;
    view.type = c10::ScalarType::Double;
    view.cells = nullptr;
    view.scan = false;
    if (buffer.cells != nullptr) {
      Cell* cells = arena().cells(buffer.size);
      for (std::int64_t k = 0; k < buffer.size; ++k) cells[k] = buffer.cell(k);
      view.cells = cells;
    }
    std::int64_t stride = 1;
    for (std::size_t d = view.sizes.size(); d-- > 0;) {
      view.strides[d] = stride;
      stride *= view.sizes[d];
    }
    before_.emplace_back(i, std::move(view));
  }
}

void OpCall::set_results(c10::ArrayRef<c10::IValue> results) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) results_.push_back(result.toTensor());
    if (result.isTensorList())
      for (const at::Tensor& tensor : result.toTensorVector()) results_.push_back(tensor);
  }
  c10::ScalarType type = c10::ScalarType::Double;
  for (const at::Tensor& result : results_) {
    if (!is_real_floating(result)) continue;
    type = result.scalar_type();
    break;
  }
  arithmetic_ = arithmetic_for(context_.dtype, type);
  if (in_backward_) {
    arithmetic_.stored.largest /= context_.backward_scale;
    arithmetic_.inner.largest /= context_.backward_scale;
  }
}

int OpCall::index_of(std::string_view name) const {
  for (std::size_t i = 0; i < traits_.arguments.size(); ++i)
    if (traits_.arguments[i] == name) return static_cast<int>(i);
  return -1;
}

const c10::IValue* OpCall::argument(std::string_view name) const {
  const int i = index_of(name);
  return i < 0 || arguments_[i].isNone() ? nullptr : &arguments_[i];
}

const at::Tensor* OpCall::tensor(std::string_view name) const {
  const c10::IValue* value = argument(name);
  return value != nullptr && value->isTensor() && value->toTensor().defined() ? &value->toTensor()
                                                                              : nullptr;
}

std::optional<double> OpCall::number(std::string_view name) const {
  const c10::IValue* value = argument(name);
  if (value == nullptr) return std::nullopt;
  if (value->isDouble()) return value->toDouble();
  if (value->isInt()) return static_cast<double>(value->toInt());
  if (value->isBool()) return value->toBool() ? 1.0 : 0.0;
  return std::nullopt;
}

std::int64_t OpCall::integer(std::string_view name, std::int64_t otherwise) const {
  const c10::IValue* value = argument(name);
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}

bool OpCall::boolean(std::string_view name, bool otherwise) const {
  const c10::IValue* value = argument(name);
  return value != nullptr && value->isBool() ? value->toBool() : otherwise;
}

std::vector<std::int64_t> OpCall::integers(std::string_view name) const {
  const c10::IValue* value = argument(name);
  if (value == nullptr) return {};
  if (value->isInt()) return {value->toInt()};
  if (value->isIntList()) return value->toIntVector();
  return {};
}

std::optional<BoundedView> OpCall::view(std::string_view name) const {
  const int i = index_of(name);
  if (i < 0) return std::nullopt;
  const c10::IValue& value = arguments_[i];
  if (value.isTensor() && !value.toTensor().defined()) return std::nullopt;
  if (!value.isTensor() && !value.isDouble() && !value.isInt() && !value.isBool())
    return std::nullopt;
  return view(i);
}

BoundedView OpCall::required_view(std::string_view name) const {
  if (std::optional<BoundedView> found = view(name)) return *std::move(found);
  throw NoRule(traits_.name + " without " + std::string(name));
}

BoundedView OpCall::view(int index) const {
  for (const auto& [i, saved] : before_)
    if (i == index) return saved;
  const c10::IValue& value = arguments_[index];
  if (value.isTensor()) return context_.shadows.view_of(value.toTensor());
  double* storage = context_.arena.doubles(1);
  *storage = value.isDouble() ? value.toDouble()
             : value.isInt()  ? static_cast<double>(value.toInt())
                              : value.toBool();
  BoundedView view;
  view.data = storage;
  view.wrapped = true;
  return view;
}

Buffer OpCall::read(const BoundedView& view, c10::IntArrayRef sizes, bool numbers_in_inner) {
  if (view.wrapped) {
    Arithmetic scanned = arithmetic();
    if (numbers_in_inner) scanned.stored = scanned.inner;
    return load(arena(), view, sizes, scanned);
  }
  return load(
      arena(), view, sizes,
      is_real_floating(view.type) ? arithmetic_for(context_.dtype, view.type) : arithmetic());
}

void OpCall::write_errors(const at::Tensor& target, const Buffer& out, const double* errors) {
  Cell* cells = nullptr;
  for (std::int64_t i = 0; i < out.size; ++i) {
    if (errors[i] == 0) continue;
    if (cells == nullptr) cells = arena().cells(out.size);
    // NaN comes from infinite bounds that met a zero or each other.
    cells[i] = inexact_cell(out.value(i),
                            errors[i] >= 0 ? errors[i] : std::numeric_limits<double>::infinity());
  }
  write(target, cells);
}

void OpCall::branch(BoundedValue a, BoundedValue b) {
  if (in_backward_) return;
  const double error = a.error + b.error;
  if (error == 0 || !(std::fabs(a.value - b.value) <= error)) return;
  if (branches_++ > 0) return;
  branch_text_ = traits_.name + "(…) element " + index_text(element_, element_sizes_) + ": " +
                 shortest(a.value) + " and " + shortest(b.value) +
                 " lie within their rounding error " + short_text(error);
}

void OpCall::finish() {
  if (branches_ == 0) return;
  std::string line = context_.place.empty() ? branch_text_ : context_.place + ": " + branch_text_;
  if (branches_ > 1) line += ", and " + std::to_string(branches_ - 1) + " more";
  if (std::find(context_.undecided.begin(), context_.undecided.end(), line) ==
      context_.undecided.end())
    context_.undecided.push_back(std::move(line));
}

OpCall& current_call() { return *current; }
CurrentCall::CurrentCall(OpCall& call) { current = &call; }
CurrentCall::~CurrentCall() { current = nullptr; }

}  // namespace distgrad::tolerance
