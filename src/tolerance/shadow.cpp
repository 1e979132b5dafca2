#include "tolerance/shadow.h"

#include <algorithm>

namespace distgrad::tolerance {
namespace {

bool holds_reals(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
    case c10::ScalarType::Float:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Long:
    case c10::ScalarType::Int:
    case c10::ScalarType::Short:
    case c10::ScalarType::Char:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Bool:
      return true;
    default:
      return false;
  }
}

double element(const void* data, c10::ScalarType type, std::int64_t i) {
  switch (type) {
    case c10::ScalarType::Double:
      return static_cast<const double*>(data)[i];
    case c10::ScalarType::Float:
      return static_cast<const float*>(data)[i];
    case c10::ScalarType::Half:
      return static_cast<const c10::Half*>(data)[i];
    case c10::ScalarType::BFloat16:
      return static_cast<const c10::BFloat16*>(data)[i];
    case c10::ScalarType::Long:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
    case c10::ScalarType::Int:
      return static_cast<const std::int32_t*>(data)[i];
    case c10::ScalarType::Short:
      return static_cast<const std::int16_t*>(data)[i];
    case c10::ScalarType::Char:
      return static_cast<const std::int8_t*>(data)[i];
    case c10::ScalarType::Byte:
      return static_cast<const std::uint8_t*>(data)[i];
    case c10::ScalarType::Bool:
      return static_cast<const bool*>(data)[i] ? 1 : 0;
    default:
      return 0;
  }
}

// Calls f(row-major index, strided offset) for every element.
template <typename F>
void for_each_offset(c10::IntArrayRef sizes, c10::IntArrayRef strides, const F& f) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  if (n == 0) return;
  Dims index(sizes.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t i = 0;;) {
    f(i, offset);
    if (++i == n) return;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

bool is_contiguous(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::int64_t expected = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (sizes[d] == 0) return true;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

}  // namespace

Cell expanded(const Cell& cell, double value) {
  if (!cell.plain()) return cell;
  if (value == 0) return Cell();  // adding zero is free: still no term
  return {0, 0, std::fabs(value), 1, static_cast<std::int16_t>(lowest_bit(value)), 0, {}};
}

double* Arena::doubles(std::int64_t n) {
  if (used_doubles_ == doubles_.size()) doubles_.emplace_back();
  std::vector<double>& block = doubles_[used_doubles_++];
  if (block.size() < static_cast<std::size_t>(n)) block.resize(n);
  return block.data();
}

Cell* Arena::cells(std::int64_t n) {
  if (used_cells_ == cells_.size()) cells_.emplace_back();
  std::vector<Cell>& block = cells_[used_cells_++];
  block.assign(n, Cell());
  return block.data();
}

std::int64_t BoundedView::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  return n;
}
bool BoundedView::contiguous() const { return is_contiguous(sizes, strides); }

Shadows::Entry* Shadows::find(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto it = entries_.find(tensor.storage().unsafeGetStorageImpl());
  return it == entries_.end() ? nullptr : &it->second;
}

Shadows::Entry& Shadows::entry_of(const at::Tensor& tensor) {
  const c10::StorageImpl* key = tensor.storage().unsafeGetStorageImpl();
  const auto it = entries_.find(key);
  if (it != entries_.end()) return it->second;
  return entries_.emplace(key, Entry{tensor.storage().getWeakStorageImpl(), {}, false, false})
      .first->second;
}

bool Shadows::is_stacked(const at::Tensor& tensor) const {
  const Entry* entry = find(tensor);
  return entry != nullptr && entry->stacked && tensor.storage_offset() == 0 &&
         tensor.is_contiguous() &&
         tensor.numel() * static_cast<std::int64_t>(tensor.dtype().itemsize()) ==
             static_cast<std::int64_t>(tensor.storage().nbytes());
}

void Shadows::mark_stacked(const at::Tensor& tensor) { entry_of(tensor).stacked = true; }
void Shadows::mark_operand(const at::Tensor& tensor) { entry_of(tensor).operand = true; }

Shadows::Entry& Shadows::obtain(const at::Tensor& tensor) {
  Entry& entry = entry_of(tensor);
  const std::size_t elements = tensor.storage().nbytes() / tensor.dtype().itemsize();
  if (entry.cells.size() < elements) {
    cells_written_ += elements - entry.cells.size();
    entry.cells.resize(elements);
  }
  return entry;
}

BoundedView Shadows::view_of(const at::Tensor& tensor) const {
  BoundedView view;
  view.type = tensor.scalar_type();
  view.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  view.strides.assign(tensor.strides().begin(), tensor.strides().end());
  view.wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (!holds_reals(view.type) || tensor.numel() == 0) {
    view.scan = false;
    if (tensor.numel() != 0) view.sizes = {0};
    return view;
  }
  view.data = tensor.const_data_ptr();
  const Entry* entry = find(tensor);
  view.operand = entry != nullptr && entry->operand;
  view.scan = entry == nullptr || entry->cells.empty();
  if (!view.scan) view.cells = entry->cells.data() + tensor.storage_offset();
  return view;
}

void Shadows::write(const at::Tensor& tensor, const Cell* cells) {
  if (tensor.numel() == 0) return;
  if (cells == nullptr) {
    Entry* entry = find(tensor);
    if (entry == nullptr || entry->cells.empty()) return;
    Cell* target = entry->cells.data() + tensor.storage_offset();
    for_each_offset(tensor.sizes(), tensor.strides(),
                    [&](std::int64_t, std::int64_t o) { target[o] = Cell(); });
    return;
  }
  Cell* target = obtain(tensor).cells.data() + tensor.storage_offset();
  if (is_contiguous(tensor.sizes(), tensor.strides())) {
    std::copy(cells, cells + tensor.numel(), target);
  } else {
    for_each_offset(tensor.sizes(), tensor.strides(),
                    [&](std::int64_t i, std::int64_t o) { target[o] = cells[i]; });
  }
}

void Shadows::forget_dead() {
  constexpr std::size_t kWorthIt = std::size_t{1} << 20;  // cells: 80 MiB
  if (cells_written_ < kWorthIt) return;
  cells_written_ = 0;
  std::erase_if(entries_, [](const auto& item) { return item.second.storage.expired(); });
}

Buffer load(Arena& arena, const BoundedView& view, c10::IntArrayRef sizes,
            const Arithmetic& scanned) {
  Buffer buffer;
  buffer.size = 1;
  for (const std::int64_t s : sizes) buffer.size *= s;
  if (buffer.size == 0 || view.numel() == 0) {
    buffer.size = 0;
    return buffer;
  }
  const bool single = view.numel() == 1;
  const bool same = single || (c10::IntArrayRef(view.sizes) == sizes && view.contiguous());
  const std::int64_t length = single ? 1 : buffer.size;
  buffer.step = single ? 0 : 1;

  Dims strides;
  if (!same) {
    const std::size_t missing = sizes.size() - view.sizes.size();
    for (std::size_t d = 0; d < sizes.size(); ++d)
      strides.push_back(d < missing || view.sizes[d - missing] == 1 ? 0
                                                                    : view.strides[d - missing]);
  }
  if (same && view.type == c10::ScalarType::Double) {
    buffer.values = static_cast<const double*>(view.data);
  } else {
    double* values = arena.doubles(length);
    if (same) {
      for (std::int64_t i = 0; i < length; ++i) values[i] = element(view.data, view.type, i);
    } else {
      for_each_offset(sizes, strides, [&](std::int64_t i, std::int64_t o) {
        values[i] = element(view.data, view.type, o);
      });
    }
    buffer.values = values;
  }
  if (view.cells != nullptr) {
    if (same) {
      buffer.cells = view.cells;
    } else {
      Cell* cells = arena.cells(length);
      bool any = false;
      for_each_offset(sizes, strides, [&](std::int64_t i, std::int64_t o) {
        cells[i] = view.cells[o];
        any |= !cells[i].plain();
      });
      if (any) buffer.cells = cells;
    }
  } else if (view.scan) {
    Cell* cells = nullptr;
    for (std::int64_t i = 0; i < length; ++i) {
      if (fits(scanned.stored, buffer.values[i])) continue;
      if (cells == nullptr) buffer.cells = cells = arena.cells(length);
      cells[i] =
          inexact_cell(buffer.values[i], scanned.stored_rounding(std::fabs(buffer.values[i])));
    }
  }
  return buffer;
}

BoundedView permuted(const BoundedView& view, c10::IntArrayRef order) {
  BoundedView out = view;
  for (std::size_t d = 0; d < order.size(); ++d) {
    out.sizes[d] = view.sizes[order[d]];
    out.strides[d] = view.strides[order[d]];
  }
  return out;
}

}  // namespace distgrad::tolerance
