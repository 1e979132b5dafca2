// Holds what rules of reductions and row operators share: a tensor as rows, and the handling of one
// row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tolerance/op_call.h"
#include "tolerance/products.h"

namespace distgrad::tolerance {

// Reads a tensor with some dims last, as rows of `length` elements in row-major order of the other
// dims.
struct Rows {
  Buffer all;
  std::int64_t count = 0;
  std::int64_t length = 0;
  Dims order;
  Buffer row(std::int64_t i) const { return all.row(i * length, length); }
};

// `dims` are as torch gives them; none means all.
Rows rows_of(OpCall&, const BoundedView&, const std::vector<std::int64_t>& dims);

inline std::vector<std::int64_t> dims_argument(const OpCall& call) { return call.integers("dim"); }

inline bool any_cells(const Rows& rows) { return rows.all.cells != nullptr; }

// Reads an optional argument, with size 0 if it is not given.
Buffer read_or_none(OpCall&, std::string_view name, c10::IntArrayRef sizes);

// Returns `out` with the error of a sum of the row in any order.
BoundedValue row_sum(const Buffer& row, const Arithmetic&, double out);

// Returns the largest (sign 1) or smallest (-1) of values with errors. Every element that may be it
// is compared with the winner, as a branch.
BoundedValue extremum(OpCall&, const Buffer& row, double sign);

// Writes one BoundedValue a row to the result's elements, which are in the same order with and
// without keepdim.
template <typename F>
void reduce_rows(OpCall& call, const at::Tensor& result, const Rows& rows, const F& f) {
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* errors = call.arena().doubles(out.size);
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < out.size; ++i) {
    call.at_element(i, result.sizes());
    errors[i] = stored_error(f(rows.row(i), out.value(i)), out.value(i));
  }
  call.write_errors(result, out, errors);
}

// Calls f(row, out row, errors), for operators whose result has the argument's shape.
template <typename F>
void map_rows(OpCall& call, const at::Tensor& result, const Rows& rows, const F& f) {
  const at::Tensor moved = result.permute(c10::IntArrayRef(rows.order));
  const Buffer out = call.read(call.context().shadows.view_of(moved), moved.sizes());
  double* errors = call.arena().doubles(out.size);
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < rows.count && rows.length > 0; ++i)
    f(rows.row(i), out.row(i * rows.length, rows.length), errors + i * rows.length);
  call.write_errors(moved, out, errors);
}

}  // namespace distgrad::tolerance
