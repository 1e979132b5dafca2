// Keeps what is known of the error of every element of every tensor, by storage. A view with any
// strides reads and writes the same memory and so finds the same cells, and an in-place operator
// changes them in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "tolerance/products.h"

namespace distgrad::tolerance {

// Describes one element. The default cell is exact, with one term. An element that is a sum whose
// terms the run may add in another order (a reduction over ranks, autograd's accumulation) keeps
// the figures of its terms, so that what is added to it later is judged as one sum with them.
struct Cell {
  double error = 0;        // bound of |run - simulation|
  double sum_error = 0;    // the sum of the terms' own errors
  double magnitude = 0;    // the sum of the terms' absolute values, errors included
  std::int32_t terms = 0;  // 0: the default cell
  // All terms are multiples of 2^unit; kInexact if some term has an error.
  std::int16_t unit = kNoBit;
  // Counts the multiplications of an exact product. As a factor of an inexact product it may itself
  // be rounded on the way if the run takes the factors in another order.
  std::int16_t exact_products = 0;
  ProductFigures product;  // of factors in any order; none if the program fixes the order

  static constexpr std::int16_t kInexact = -kNoBit;
  bool plain() const { return terms == 0; }
};

inline Cell inexact_cell(double value, double error) {
  return {error, error, std::fabs(value) + error, 1, Cell::kInexact, 0, {}};
}
// Returns the cell with its figures written out, if it is the default cell.
Cell expanded(const Cell& cell, double value);

// Holds the memory of one operator's rules, which is freed at once.
class Arena {
 public:
  double* doubles(std::int64_t n);
  Cell* cells(std::int64_t n);  // default cells
  void reset() { used_doubles_ = used_cells_ = 0; }

 private:
  std::deque<std::vector<double>> doubles_;
  std::deque<std::vector<Cell>> cells_;
  std::size_t used_doubles_ = 0;
  std::size_t used_cells_ = 0;
};

using Dims = c10::SmallVector<std::int64_t, 6>;

// Views values and their cells with strides; the values may have any real dtype.
struct BoundedView {
  const void* data = nullptr;
  c10::ScalarType type = c10::ScalarType::Double;
  const Cell* cells = nullptr;  // parallel to data; null: none known
  bool scan = true;      // cells are unknown: a value that the dtype does not hold was rounded (a
                         // constructor, a leaf's weight)
  bool wrapped = false;  // a Python number
  bool operand = false;  // Entry::operand
  Dims sizes;
  Dims strides;

  std::int64_t numel() const;
  bool contiguous() const;
};

// Holds values as double in row-major order of some shape. A step of 0 repeats one value.
struct Buffer {
  const double* values = nullptr;
  const Cell* cells = nullptr;  // null: all exact, one term each
  std::int64_t size = 0;
  std::int64_t step = 1;

  double value(std::int64_t i) const { return values[i * step]; }
  Cell cell(std::int64_t i) const { return cells ? cells[i * step] : Cell(); }
  double error(std::int64_t i) const { return cells ? cells[i * step].error : 0; }
  BoundedValue number(std::int64_t i) const { return {value(i), error(i)}; }
  Buffer row(std::int64_t offset, std::int64_t length) const {
    return {values + offset * step, cells ? cells + offset * step : nullptr, length, step};
  }
};

class Shadows {
 public:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being used again
    std::vector<Cell> cells;  // by element of the storage; empty: all plain
    bool stacked = false;     // written by stack: its leading dim may be the ranks
    // stack has read it: it may be one rank's operand of a collective, a factor of its product.
    bool operand = false;
  };

  Entry& obtain(const at::Tensor& tensor);  // with cells for every element of the storage
  // Returns true if the tensor is the whole of a storage that stack wrote (or a multiple of one).
  bool is_stacked(const at::Tensor& tensor) const;
  void mark_stacked(const at::Tensor& tensor);
  void mark_operand(const at::Tensor& tensor);
  BoundedView view_of(const at::Tensor& tensor) const;
  // Writes `cells` in row-major order of the tensor; null means all plain.
  void write(const at::Tensor& tensor, const Cell* cells);
  void forget_dead();  // storages that no longer exist

 private:
  Entry* find(const at::Tensor& tensor);
  const Entry* find(const at::Tensor& tensor) const {
    return const_cast<Shadows*>(this)->find(tensor);
  }
  Entry& entry_of(const at::Tensor& tensor);  // made if there is none

  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  std::size_t cells_written_ = 0;
};

// Reads a view broadcast to `sizes`. Values without cells are checked against the format of
// `scanned`.
Buffer load(Arena& arena, const BoundedView& view, c10::IntArrayRef sizes,
            const Arithmetic& scanned);

// Reorders dims.
BoundedView permuted(const BoundedView& view, c10::IntArrayRef order);

}  // namespace distgrad::tolerance
