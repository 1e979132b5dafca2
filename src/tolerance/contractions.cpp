// Bounds sums of products: matrix products, convolutions, and accumulation into indexed places.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// Describes one entry of a matrix product: row times column, plus what it is added to.
struct Entry {
  double error = 0;      // from the terms' own errors
  double magnitude = 0;  // sum of |terms|, errors included
  int unit = kNoBit;     // all terms are multiples of 2^unit
  std::int64_t terms = 0;

  void add(BoundedValue a, BoundedValue b, int unit_a, int unit_b) {
    const double x = std::fabs(a.value), y = std::fabs(b.value);
    if ((x == 0 && a.error == 0) || (y == 0 && b.error == 0)) {
      if (!(a.error < kInfinity && b.error < kInfinity)) error = kInfinity;
      return;
    }
    error += x * b.error + y * a.error + a.error * b.error;
    magnitude += (x + a.error) * (y + b.error);
    unit = std::min(unit, unit_a + unit_b);
    ++terms;
  }
  // Bounds any order, with or without fused multiply-add, by gamma_n sum |a||b| (Higham, section
  // 3.1).
  double finished(const Arithmetic& arithmetic, double out) const {
    if (error == 0 && terms > 0 && unit >= arithmetic.stored.min_exponent &&
        magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + unit) &&
        magnitude <= arithmetic.stored.largest)
      return 0;
    if (terms == 0 && error == 0) return 0;
    if (!std::isfinite(out)) return error == 0 ? 0 : kInfinity;
    if (!(magnitude <= arithmetic.inner.largest)) return kInfinity;
    double bound = error + arithmetic.inner_gamma(static_cast<double>(terms)) * magnitude +
                   static_cast<double>(terms) * arithmetic.inner.smallest;
    // A GPU may split 16-bit products along the inner dimension and round each part once to the
    // stored type (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction, on by
    // default).
    if (arithmetic.narrows() && terms > 1) bound += arithmetic.stored_rounding(magnitude);
    const InArithmetic in(arithmetic);
    return stored_error({out, bound}, out);
  }
};

std::vector<int> units_of(const Buffer& buffer) {
  std::vector<int> units(buffer.step ? buffer.size : 1);
  for (std::size_t i = 0; i < units.size(); ++i) units[i] = lowest_bit(buffer.values[i]);
  return units;
}

struct Matrix {
  Buffer entries;  // batch, row, column
  std::vector<int> units;
  std::int64_t batch_stride, row_stride, column_stride;

  std::int64_t at(std::int64_t b, std::int64_t r, std::int64_t c) const {
    return b * batch_stride + r * row_stride + c * column_stride;
  }
  BoundedValue number(std::int64_t i) const { return entries.number(i); }
  int unit(std::int64_t i) const { return units[i * entries.step]; }
};

Matrix matrix(OpCall& call, std::string_view name, std::int64_t batches, std::int64_t rows,
              std::int64_t columns) {
  Matrix m;
  m.entries = call.read(call.required_view(name));
  m.units = units_of(m.entries);
  m.batch_stride = batches == 1 ? 0 : rows * columns;
  m.row_stride = columns;
  m.column_stride = 1;
  return m;
}

BoundedValue scaled_by(BoundedValue x, const std::optional<double>& factor) {
  return factor && *factor != 1 ? x * constant(*factor) : x;
}

// Bounds out = beta * added + alpha * a b, over batches.
void product_of_matrices(OpCall& call, std::string_view left, std::string_view right,
                         std::string_view added) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const c10::IntArrayRef a_sizes = call.tensor(left)->sizes(),
                         b_sizes = call.tensor(right)->sizes();
  const std::int64_t batches = a_sizes.size() == 3 ? a_sizes[0] : 1;
  const std::int64_t inner = a_sizes.back();
  const std::int64_t rows = a_sizes.size() == 1 ? 1 : a_sizes[a_sizes.size() - 2];
  const std::int64_t columns = b_sizes.size() == 1 ? 1 : b_sizes.back();
  const bool sums_batches = call.traits().name == "addbmm";
  const Matrix a = matrix(call, left, batches, rows, inner);
  const Matrix b = matrix(call, right, batches, inner, columns);
  Buffer c;
  if (!added.empty()) c = call.read(call.required_view(added), result.sizes());
  const Arithmetic& arithmetic = call.arithmetic();
  const InArithmetic in(arithmetic);
  const std::optional<double> alpha = call.number("alpha"), beta = call.number("beta");
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* errors = call.arena().doubles(out.size);
  for (std::int64_t i = 0; i < out.size; ++i) {
    const std::int64_t batch = sums_batches ? 0 : i / (rows * columns), row = i / columns % rows,
                       column = i % columns;
    Entry entry;
    for (std::int64_t n = batch; n < (sums_batches ? batches : batch + 1); ++n)
      for (std::int64_t k = 0; k < inner; ++k) {
        const std::int64_t x = a.at(n, row, k), y = b.at(n, k, column);
        entry.add(a.number(x), b.number(y), a.unit(x), b.unit(y));
      }
    if (alpha && *alpha != 1 && entry.terms > 0) {
      entry.error = std::fabs(*alpha) * (entry.error + arithmetic.inner_rounding(entry.magnitude));
      entry.magnitude *= std::fabs(*alpha);
    }
    if (c.size && beta.value_or(1) != 0) {
      const BoundedValue term = scaled_by(c.number(i), beta);
      entry.add(term, constant(1), lowest_bit(term.value), 0);
    }
    errors[i] = entry.finished(arithmetic, out.value(i));
  }
  call.write_errors(result, out, errors);
}

// Returns |arguments|, on which operators of many terms run themselves (every coefficient is
// positive).
at::Tensor enlarged(OpCall& call, const BoundedView& view, bool with_errors) {
  at::Tensor tensor = at::empty(c10::IntArrayRef(view.sizes), at::kDouble);
  double* data = tensor.mutable_data_ptr<double>();
  const Buffer buffer = call.read(view);
  for (std::int64_t i = 0; i < buffer.size; ++i)
    data[i] = std::fabs(buffer.value(i)) + (with_errors ? buffer.error(i) : 0);
  return tensor;
}

// Returns the lowest bit in use anywhere in a tensor.
int lowest_unit(const Buffer& buffer) {
  int unit = kNoBit;
  for (std::int64_t i = 0; i < (buffer.step ? buffer.size : std::min<std::int64_t>(buffer.size, 1));
       ++i)
    unit = std::min(unit, lowest_bit(buffer.values[i]));
  return unit;
}

enum class Terms {
  kArguments,  // each element of an argument is a term
  kProducts    // each product of elements of two arguments is one, too
};

// Bounds an operator that is a sum, with positive coefficients, of its floating-point arguments'
// elements or of products of them. `stored_additions` rounds each addition to the stored type.
void positive_form(OpCall& call, Terms terms, bool stored_additions) {
  bool any_floating = false;
  for (const at::Tensor& result : call.results()) any_floating |= is_real_floating(result);
  if (!any_floating) return;
  torch::jit::Stack plain, enlarged_stack, ones;
  bool any_error = false;
  std::vector<int> units;
  for (std::size_t i = 0; i < call.arguments().size(); ++i) {
    const c10::IValue& value = call.arguments()[i];
    const std::string& name = call.traits().arguments[i];
    if (value.isTensor() && is_real_floating(value.toTensor())) {
      const BoundedView view = call.view(static_cast<int>(i));
      const Buffer buffer = call.read(view);
      any_error |= buffer.cells != nullptr;
      units.push_back(lowest_unit(buffer));
      plain.emplace_back(enlarged(call, view, false));
      enlarged_stack.emplace_back(enlarged(call, view, true));
      ones.emplace_back(at::ones(c10::IntArrayRef(view.sizes), at::kDouble));
    } else if ((name == "alpha" || name == "beta") && (value.isDouble() || value.isInt())) {
      const double factor =
          value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
      if (std::fabs(factor) != 1) units.push_back(-kNoBit);
      const c10::IValue size = c10::IValue(std::fabs(factor));
      plain.push_back(size);
      enlarged_stack.push_back(size);
      ones.emplace_back(1.0);
    } else {
      plain.push_back(value);
      enlarged_stack.push_back(value);
      ones.push_back(value);
    }
  }
  int unit = kNoBit;
  for (std::size_t i = 0; i < units.size(); ++i) {
    unit = std::min(unit, units[i]);
    for (std::size_t k = 0; k < i && terms == Terms::kProducts; ++k)
      unit = std::min(unit, units[i] + units[k]);
  }
  call.op().callBoxed(plain);
  call.op().callBoxed(enlarged_stack);
  call.op().callBoxed(ones);
  for (std::size_t r = 0; r < call.results().size(); ++r) {
    const at::Tensor& result = call.results()[r];
    if (!is_real_floating(result)) continue;
    const at::Tensor low = plain[r].toTensor().contiguous(),
                     high = enlarged_stack[r].toTensor().contiguous();
    const at::Tensor counts = ones[r].toTensor().contiguous();
    const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
    const Arithmetic& arithmetic = call.arithmetic();
    double* errors = call.arena().doubles(out.size);
    const InArithmetic in(arithmetic);
    for (std::int64_t i = 0; i < out.size; ++i) {
      const double magnitude = high.const_data_ptr<double>()[i];
      const double n = counts.const_data_ptr<double>()[i];
      const double propagated =
          any_error ? std::max(0.0, magnitude - low.const_data_ptr<double>()[i]) : 0;
      const bool exact =
          !any_error && (magnitude == 0 ||
                         (unit > arithmetic.stored.min_exponent &&
                          magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + unit) &&
                          magnitude <= arithmetic.stored.largest));
      const bool moved = terms == Terms::kArguments && n <= 1;  // one term: nothing was added
      if (exact || (moved && propagated == 0)) {
        errors[i] = 0;
        continue;
      }
      double error = propagated;
      if (!moved) {
        error +=
            (stored_additions ? arithmetic.stored_gamma(n) : arithmetic.inner_gamma(n)) * magnitude;
        if (arithmetic.narrows()) error += arithmetic.stored_rounding(magnitude);
      }
      if (!(magnitude <= arithmetic.stored.largest)) error = kInfinity;
      errors[i] = stored_error({out.value(i), error}, out.value(i));
    }
    call.write_errors(result, out, errors);
  }
}

void accumulate(OpCall& call) { positive_form(call, Terms::kArguments, true); }
void convolve(OpCall& call) { positive_form(call, Terms::kProducts, false); }
// The gradient of the input is assembled from columns, in the stored type.
void convolve_backward(OpCall& call) { positive_form(call, Terms::kProducts, true); }

// Above this many multiplications the operator itself runs on absolute values.
constexpr std::int64_t kManyProducts = 1 << 20;
bool is_large(const OpCall& call, std::string_view left) {
  return call.tensor(left)->numel() * std::max<std::int64_t>(1, call.result().size(-1)) >
         kManyProducts;
}

void mm(OpCall& call) {
  if (is_large(call, "self")) return positive_form(call, Terms::kProducts, false);
  product_of_matrices(call, "self", "mat2", "");
}
void bmm(OpCall& call) { mm(call); }
void mv(OpCall& call) { product_of_matrices(call, "self", "vec", ""); }
void dot(OpCall& call) {
  product_of_matrices(call, "self", call.view("tensor") ? "tensor" : "other", "");
}
void addmm(OpCall& call) { product_of_matrices(call, "mat1", "mat2", "self"); }
void addmv(OpCall& call) { product_of_matrices(call, "mat", "vec", "self"); }
void addbmm(OpCall& call) { product_of_matrices(call, "batch1", "batch2", "self"); }

void outer_added(OpCall& call) {
  const at::Tensor& result = call.result();
  const Buffer a = call.read(call.required_view("vec1")), b = call.read(call.required_view("vec2"));
  const Buffer c = call.read(call.required_view("self"), result.sizes());
  const Buffer out = call.read(result);
  Arithmetic each_step = call.arithmetic();
  each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  double* errors = call.arena().doubles(out.size);
  for (std::int64_t i = 0; i < out.size; ++i) {
    const BoundedValue product =
        scaled_by(a.number(i / b.size) * b.number(i % b.size), call.number("alpha"));
    errors[i] = stored_error(scaled_by(c.number(i), call.number("beta")) + product, out.value(i));
  }
  call.write_errors(result, out, errors);
}

void scatter(OpCall& call) {
  const c10::IValue* reduce = call.argument("reduce");
  if (reduce != nullptr && reduce->toStringRef() != "add") return estimate_by_perturbation(call);
  if (reduce != nullptr) return accumulate(call);
  for (const RuleRow& row : rearranging_rules())
    if (row.op == "gather") return row.rule(call);
}
void index_put(OpCall& call) {
  if (call.boolean("accumulate", false)) return accumulate(call);
  for (const RuleRow& row : rearranging_rules())
    if (row.op == "gather") return row.rule(call);
}

void put(OpCall& call) {
  if (call.boolean("accumulate", false)) return accumulate(call);
  for (const RuleRow& row : rearranging_rules())
    if (row.op == "gather") return row.rule(call);
}

// Bounds a x b: two products and a difference.
void cross(OpCall& call) {
  const at::Tensor& result = call.result();
  const std::int64_t given_dim = call.integer("dim", -1);
  const std::int64_t dim = given_dim < 0 ? given_dim + result.dim() : given_dim;
  Dims order;
  for (std::int64_t d = 0; d < result.dim(); ++d)
    if (d != dim) order.push_back(d);
  order.push_back(dim);
  const at::Tensor target = result.permute(c10::IntArrayRef(order));
  BoundedView va = call.required_view("self"), vb = call.required_view("other");
  if (va.sizes.size() != order.size() || vb.sizes.size() != order.size())
    return estimate_by_perturbation(call);
  const Buffer a = call.read(permuted(va, order), target.sizes()),
               b = call.read(permuted(vb, order), target.sizes());
  const Buffer out = call.read(call.context().shadows.view_of(target), target.sizes());
  Arithmetic each_step = call.arithmetic();
  each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  double* errors = call.arena().doubles(out.size);
  for (std::int64_t i = 0; i < out.size; ++i) {
    const std::int64_t base = i - i % 3, p = base + (i + 1 - base) % 3,
                       q = base + (i + 2 - base) % 3;
    errors[i] = stored_error(a.number(p) * b.number(q) - a.number(q) * b.number(p), out.value(i));
  }
  call.write_errors(target, out, errors);
}

constexpr RuleRow kContractionRules[] = {
    // operator, rule
    {"mm", mm},
    {"bmm", bmm},
    {"mv", mv},
    {"dot", dot},
    {"vdot", dot},
    {"addmm", addmm},
    {"addmv", addmv},
    {"addbmm", addbmm},
    {"baddbmm", addbmm},
    {"addr", outer_added},
    {"linalg_cross", cross},
    {"index_add", accumulate},
    {"scatter_add", accumulate},
    {"embedding_dense_backward", accumulate},
    {"unfold_backward", accumulate},
    {"trace_backward", accumulate},
    {"index_put", index_put},
    {"_index_put_impl", index_put},
    {"scatter", scatter},
    {"convolution", convolve},
    {"convolution_backward", convolve_backward},
    {"put", put},
    {"reflection_pad1d_backward", accumulate},
    {"reflection_pad2d_backward", accumulate},
    {"reflection_pad3d_backward", accumulate},
    {"replication_pad1d_backward", accumulate},
    {"replication_pad2d_backward", accumulate},
    {"replication_pad3d_backward", accumulate},
};

}  // namespace

std::span<const RuleRow> contraction_rules() { return kContractionRules; }

}  // namespace distgrad::tolerance
