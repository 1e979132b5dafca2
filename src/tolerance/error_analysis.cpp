#include "tolerance/error_analysis.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "tolerance/precision.h"
#include "tolerance/rules.h"

namespace distgrad {

class ErrorAnalysis::State {
 public:
  explicit State(DType dtype) : include_(kKey) { context.dtype = dtype; }
  tolerance::Context context;
  std::int64_t elements = 0;

  // Uses an out-of-tree key, whose place is below autograd and above the kernels. Nothing in the
  // wheel's CPU path uses it.
  static constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

namespace {

using tolerance::OpCall;
using tolerance::OpTraits;

constexpr c10::DispatchKey kKey = ErrorAnalysis::State::kKey;
ErrorAnalysis::State* alive = nullptr;

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  static std::unordered_map<c10::OperatorHandle, OpTraits> known;
  const auto it = known.find(op);
  if (it != known.end()) return it->second;
  OpTraits& traits = known.emplace(op, OpTraits(op)).first->second;
  tolerance::find_rule(traits);
  return traits;
}

bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// Returns true for reshape, contiguous and the like, which return their argument's memory if they
// can.
bool returned_an_argument(const OpCall& call) {
  if (!call.traits().written.empty() || call.results().empty()) return false;
  for (const c10::IValue& argument : call.arguments())
    if (argument.isTensor() && shares_storage(argument.toTensor(), call.result())) return true;
  return false;
}

bool holds_complex(const OpCall& call) {
  for (const c10::IValue& argument : call.arguments())
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().is_complex())
      return true;
  for (const at::Tensor& result : call.results())
    if (result.defined() && result.is_complex()) return true;
  return false;
}

bool any_floating_result(const OpCall& call) {
  return std::any_of(call.results().begin(), call.results().end(),
                     [](const at::Tensor& t) { return tolerance::is_real_floating(t); });
}

void report_unknown(tolerance::Context& context, const OpTraits& traits) {
  const std::string name = "aten::" + traits.name;
  if (std::find(context.unknown.begin(), context.unknown.end(), name) == context.unknown.end())
    context.unknown.push_back(name);
}

void judge(OpCall& call) {
  const OpTraits& traits = call.traits();
  if (returned_an_argument(call)) return;
  const tolerance::CurrentCall current(call);
  if (holds_complex(call)) {
    report_unknown(call.context(), traits);
  } else if (traits.rule != nullptr) {
    try {
      traits.rule(call);
    } catch (const tolerance::NoRule&) {
      report_unknown(call.context(), traits);
      tolerance::estimate_by_perturbation(call);
    }
  } else if (any_floating_result(call)) {
    report_unknown(call.context(), traits);
    tolerance::estimate_by_perturbation(call);
  }
  call.finish();
}

// Receives every ATen operator below autograd while an analysis is alive.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const OpTraits& traits = traits_of(op);
  // The parts of an operator that others make up, without a rule of its own, come here instead.
  const bool composed = traits.rule == nullptr &&
                        !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  if (alive == nullptr || traits.is_view || composed) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard outside(kKey);
  tolerance::Context& context = alive->context;
  context.arena.reset();
  OpCall call(context, op, traits, torch::jit::last(*stack, op.schema().arguments().size()));
  op.redispatchBoxed(below, stack);
  call.set_results(torch::jit::last(*stack, op.schema().returns().size()));
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  judge(call);
  for (const at::Tensor& result : call.results())
    if (result.defined()) alive->elements += result.numel();
  context.shadows.forget_dead();
}

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

// Runs code without interception and without autograd.
class WithoutAnalysis {
  ErrorAnalysis::Pause outside_;
  at::AutoDispatchBelowADInplaceOrView no_autograd_;
};

}  // namespace

ErrorAnalysis::Pause::Pause() : outside_(kKey) {}

ErrorAnalysis::ErrorAnalysis(DType dtype, bool on_gpu) {
  if (alive != nullptr) throw std::logic_error("one ErrorAnalysis at a time");
  tolerance::compute_functions_on_gpu(on_gpu);
  state_ = std::make_unique<State>(dtype);
  alive = state_.get();
}

ErrorAnalysis::~ErrorAnalysis() { alive = nullptr; }

at::Tensor ErrorAnalysis::bound_of(const at::Tensor& tensor) const {
  const WithoutAnalysis without_analysis;
  tolerance::Context& context = state_->context;
  context.arena.reset();
  at::Tensor bound = at::zeros(tensor.sizes(), at::kDouble);
  double* data = bound.mutable_data_ptr<double>();
  const tolerance::BoundedView view = context.shadows.view_of(tensor);
  const tolerance::Buffer buffer =
      tolerance::load(context.arena, view, tensor.sizes(),
                      tolerance::arithmetic_for(context.dtype, tensor.scalar_type()));
  for (std::int64_t i = 0; i < buffer.size; ++i) data[i] = buffer.error(i);
  return bound;
}

std::string ErrorAnalysis::describe(const at::Tensor& tensor) const {
  const WithoutAnalysis without_analysis;
  tolerance::Context& context = state_->context;
  context.arena.reset();
  const tolerance::Arithmetic& arithmetic =
      tolerance::arithmetic_for(context.dtype, tensor.scalar_type());
  const tolerance::Buffer buffer =
      tolerance::load(context.arena, context.shadows.view_of(tensor), tensor.sizes(), arithmetic);
  std::int64_t worst = -1;
  for (std::int64_t i = 0; i < buffer.size; ++i)
    if (buffer.error(i) > 0 && (worst < 0 || buffer.error(i) > buffer.error(worst))) worst = i;
  if (worst < 0) return "exact: the same bits in any order";
  const tolerance::Cell cell = buffer.cell(worst);
  const std::string dtype(traits(context.dtype).name);
  if (std::isinf(cell.error))
    return "no bound: the value may leave the range of " + dtype + " or of a function on the way";
  // In float64 the simulation rounds as the run does, and both roundings count.
  const double unit = arithmetic.stored.unit_roundoff + arithmetic.simulated;
  const double roundings = std::ceil(cell.error / (unit * cell.magnitude) - 1e-6);
  char text[160];
  std::snprintf(
      text, sizeof text, "bound %.2g = %.4g rounding%s of %s (u = %.2g) on %s of %.2g", cell.error,
      roundings, roundings == 1 ? "" : "s", dtype.c_str(), arithmetic.stored.unit_roundoff,
      cell.terms > 1
          ? ("a sum of " + std::to_string(cell.terms) + " terms, in absolute value").c_str()
          : "a value",
      cell.magnitude);
  return text;
}

void ErrorAnalysis::add_bound(const at::Tensor& tensor, const at::Tensor& extra) {
  const WithoutAnalysis without_analysis;
  tolerance::Context& context = state_->context;
  context.arena.reset();
  const tolerance::Arithmetic& arithmetic =
      tolerance::arithmetic_for(context.dtype, tensor.scalar_type());
  const tolerance::Buffer values =
      tolerance::load(context.arena, context.shadows.view_of(tensor), tensor.sizes(), arithmetic);
  const tolerance::Buffer added =
      tolerance::load(context.arena, context.shadows.view_of(extra), tensor.sizes(),
                      tolerance::arithmetic_for(DType::kFloat64, at::kDouble));
  tolerance::Cell* cells = context.arena.cells(values.size);
  for (std::int64_t i = 0; i < values.size; ++i) {
    tolerance::Cell cell = values.cell(i);
    if (added.value(i) != 0) {
      if (cell.plain()) cell = tolerance::inexact_cell(values.value(i), 0);
      cell.error += added.value(i);
      cell.sum_error += added.value(i);
      cell.magnitude += added.value(i);
      cell.unit = tolerance::Cell::kInexact;
    }
    cells[i] = cell;
  }
  context.shadows.write(tensor, cells);
}

at::Tensor ErrorAnalysis::rounding_of(const at::Tensor& values) const {
  const WithoutAnalysis without_analysis;
  tolerance::Context& context = state_->context;
  context.arena.reset();
  const tolerance::Arithmetic& arithmetic = tolerance::arithmetic_for(context.dtype, at::kDouble);
  at::Tensor bound = at::zeros(values.sizes(), at::kDouble);
  double* data = bound.mutable_data_ptr<double>();
  tolerance::BoundedView view = context.shadows.view_of(values);
  view.cells = nullptr;
  view.scan = true;
  const tolerance::Buffer buffer = tolerance::load(context.arena, view, values.sizes(), arithmetic);
  for (std::int64_t i = 0; i < buffer.size; ++i) {
    data[i] = buffer.error(i);
    // A float64 that uses its last bits was itself rounded when it was computed, and the run may
    // compute it later.
    if (context.dtype == DType::kFloat64 && tolerance::significant_bits(buffer.value(i)) > 50)
      data[i] = arithmetic.simulated * std::fabs(buffer.value(i));
  }
  return bound;
}

void ErrorAnalysis::set_backward_scale(double scale) { state_->context.backward_scale = scale; }
void ErrorAnalysis::set_place(std::string place) { state_->context.place = std::move(place); }
std::int64_t ErrorAnalysis::elements() const { return state_->elements; }
const std::vector<std::string>& ErrorAnalysis::undecided() const {
  return state_->context.undecided;
}
const std::vector<std::string>& ErrorAnalysis::unknown_operators() const {
  return state_->context.unknown;
}

}  // namespace distgrad
