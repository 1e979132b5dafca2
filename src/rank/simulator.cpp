#include "rank/simulator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "rank/backward_reach.h"
#include "rank/compiled_program.h"
#include "rank/difference_check.h"
#include "rank/driven_call.h"
#include "rank/finite_differences.h"
#include "rank/input_values.h"
#include "rank/leaf.h"
#include "rank/loss_gradients.h"
#include "rank/memory_need.h"
#include "rank/rules/rule.h"
#include "rank/simulated_call.h"
#include "rank/stated_truth.h"
#include "tolerance/error_analysis.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kManyElements = std::int64_t{1} << 20;  // all ranks' inputs together
constexpr std::int64_t kManyResults = std::int64_t{1} << 21;   // of all operators, on all ranks

// The simulator throws this if bounds take long and may wait.
struct BoundsTakeLong {};

class SimulatorRun {
 public:
  // `calls` gets the calls of collectives; it may be null.
  explicit SimulatorRun(const SimulateRequest& request, std::vector<SimulatedCall>* calls = nullptr)
      : request_(request),
        program_(request.program),
        compiled_(program_, DType::kFloat64),
        calls_(calls) {}

  Simulation run() {
    try {
      run_all();
    } catch (const std::exception&) {
      count_memory();  // it says more than "can't allocate"
      throw;
    }
    return std::move(out_);
  }

  // Returns the declared objective with each leaf that requires grad moved by `step` times its
  // `directions`. Call it instead of run().
  double objective_at(const Tensors& directions, double step) {
    is_counted_ = true;                                             // run() did
    const at::AutoGradMode graph(compiled_.loss_is_gradient_norm);  // it has a backward inside
    auto direction = directions.begin();
    for (const Input& input : program_.inputs) {
      Leaf leaf = make_leaf(program_, input, false);
      for (at::Tensor& x : leaf.leaves)
        if (input.requires_grad)
          x = (x.detach() + *direction++ * step)
                  .detach()
                  .requires_grad_(compiled_.loss_is_gradient_norm);
      if (leaf.leaves.size() == 1 && !input.is_local())
        leaf.by_rank = laid_out(program_, input, leaf.leaves[0]);
      else
        leaf.by_rank = leaf.leaves;
      leaves_.push_back(std::move(leaf));
    }
    run_forward();
    double sum = 0;
    for (std::size_t r = 0; r < out_.losses.size(); ++r)
      if (const double weight = request_.weights[0][r]; weight != 0) sum += weight * out_.losses[r];
    return sum;
  }

 private:
  void run_all() {
    for (const Input& input : program_.inputs) {
      note_bytes(declared_bytes(program_, input));
      leaves_.push_back(make_leaf(program_, input, request_.leaves_by_rank));
    }
    if (request_.with_bounds && !(request_.bounds_may_wait && has_many_elements())) {
      analysis_.emplace(program_.dtype, request_.on_gpu);
      analysis_->set_backward_scale(largest_mean());
    }
    run_forward();
    run_backward();
    if (request_.with_guards) {
      out_.reaches_no_collective = reach_.is_nowhere() && !compiled_.loss_is_gradient_norm;
      if (program_.single_device) keep_single_device();
      for (const Program::Truth& truth : program_.truth)
        if (auto stated = stated_gradient(program_, truth, leaves_))
          out_.file_truth.push_back(std::move(*stated));
    }
    if (analysis_) {
      out_.undecided = analysis_->undecided();
      out_.exact = is_exact();
    }
    if (request_.with_differences) check_by_differences();
  }

  bool has_many_elements() const {
    std::int64_t elements = 0;
    for (const Leaf& leaf : leaves_)
      for (const at::Tensor& x : leaf.by_rank) elements += x.numel();
    return elements >= kManyElements;
  }

  // Gives up on bounds that take long: few inputs may have many values made of them.
  void look_at_bounds() const {
    if (request_.bounds_may_wait && analysis_ && analysis_->elements() > kManyResults)
      throw BoundsTakeLong{};
  }

  void place(const std::string& text) {
    if (analysis_) analysis_->set_place(text);
  }

  // Counts all memory once the values are large.
  void note_bytes(std::int64_t bytes) {
    noted_bytes_ += bytes;
    if (noted_bytes_ >= kWorthCounting) count_memory();
  }

  void count_memory() {
    if (!std::exchange(is_counted_, true)) require_memory(compiled_, given_memory_bytes());
  }

  Array bound_array(const at::Tensor& x) const { return array_of(analysis_->bound_of(x)); }

  // Returns the largest divisor of a `mean` sync: values in backward before it are that many times
  // larger.
  double largest_mean() const {
    double largest = 1;
    for (const Input& input : program_.inputs) {
      double size = 1;
      for (const auto& [axis, how] : input.sync) {
        const Group* group = axis.empty() ? nullptr : program_.group_named(axis);
        if (how == Input::Sync::kMean)
          size *= group ? static_cast<double>(group->partition[0].size()) : program_.world_size;
      }
      largest = std::max(largest, size);
    }
    return largest;
  }

  void run_forward() {
    for (int r = 0; r < program_.world_size; ++r) slots_.push_back(compiled_.rank_slots(r));
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      for (int r = 0; r < program_.world_size; ++r)
        slots_[r][compiled_.input_slots[i]] = leaves_[i].by_rank[r];
    for (const CompiledStep& step : compiled_.steps) {
      place("step " + step.step->name);
      Tensors values;
      for (int r = 0; r < program_.world_size; ++r) {
        values.push_back(step.text.evaluate(slots_[r]));
        note_bytes(static_cast<std::int64_t>(values.back().nbytes()));
        look_at_bounds();
      }
      if (step.step->collective()) values = exchanged(*step.step, values);
      for (int r = 0; r < program_.world_size; ++r) slots_[r][step.slot] = values[r];
      if (step.step->collective() || request_.with_cotangents) keep(step, values);
      for (auto& slots : slots_)
        for (const int slot : step.last_used) slots[slot] = c10::IValue();
    }
    place("loss");
    Tensors losses;
    for (int r = 0; r < program_.world_size; ++r) {
      const at::Tensor loss = compiled_.loss.evaluate(slots_[r]);
      look_at_bounds();
      losses.push_back(scalar_loss(loss, program_.loss, r));
    }
    if (compiled_.loss_is_gradient_norm) {
      place("squared_gradient_norm");
      losses = squared_gradient_norms(leaves_, losses);
    }
    losses_ = std::move(losses);
    for (const at::Tensor& loss : losses_) {
      out_.losses.push_back(number(loss));
      if (analysis_) out_.loss_bounds.push_back(number(analysis_->bound_of(loss)));
    }
  }

  Tensors exchanged(const Step& step, const Tensors& operands) {
    const Rule* rule = nullptr;
    for (const RuleChoice& choice : request_.rules)
      if (choice.step == step.name) rule = rule_named(choice.rule);
    if (std::string why = why_forward_only(*step.collective(), operands); !why.empty())
      out_.forward_only = std::move(why);
    Tensors outputs = simulate_step(program_, step, operands, rule, calls_);
    if (request_.with_guards) reach_.watch(outputs);
    return outputs;
  }

  void keep(const CompiledStep& step, const Tensors& values) {
    StepValue saved;
    saved.step = step.step->name;
    for (const at::Tensor& x : values) {
      saved.by_rank.push_back(array_of(x));
      if (analysis_) saved.bound.push_back(bound_array(x));
    }
    out_.steps.push_back(std::move(saved));
    if (request_.with_cotangents) kept_.push_back(values);
  }

  void run_backward() {
    const Tensors wanted = differentiable(leaves_);
    place("backward");
    for (std::size_t i = 0; i < request_.weights.size(); ++i) {
      const bool last = i + 1 == request_.weights.size();
      const bool keep_graph = !last || is_needed_again(i);
      if (i == 0) reach_.begin();
      const Tensors grads = i == 0 && calls_
                                ? gradients_with_calls(wanted, keep_graph)
                                : gradients(weighted(request_.weights[i]), wanted, keep_graph);
      reach_.end();
      std::vector<Gradient> of_inputs;
      auto next = grads.begin();
      for (const Leaf& leaf : leaves_) {
        if (!leaf.input->requires_grad) continue;
        of_inputs.push_back(gradient_of(leaf, next));
        if (i == 0 && analysis_) {
          note_bounds(leaf, next, out_.bounds);
          if (!is_zero(out_.bounds.back()))
            out_.bound_notes.push_back(leaf.input->name + ": " + description(leaf, next));
        }
        next += static_cast<std::ptrdiff_t>(leaf.leaves.size());
      }
      out_.gradients.push_back(std::move(of_inputs));
      if (i == 0 && request_.with_cotangents) keep_cotangents();
      if (i == 0 && analysis_)
        for (const std::vector<double>& weights : request_.run_weights)
          widen_bounds(weights, wanted);
    }
  }

  void check_by_differences() {
    if (takes_values_out(program_) || request_.leaves_by_rank || out_.gradients.empty()) return;
    analysis_.reset();  // it would watch these runs, too
    Tensors directions;
    double derivative = 0, scale = 0;
    std::uint64_t seed = 0;
    for (const Leaf& leaf : leaves_) {
      if (!leaf.input->requires_grad) continue;
      const Gradient& gradient = *named(out_.gradients[0], leaf.input->name);
      for (std::size_t i = 0; i < leaf.leaves.size(); ++i) {
        directions.push_back(direction_like(leaf.leaves[i].detach(), ++seed));
        const at::Tensor along = tensor_of(*gradient.parts[i]) * directions.back();
        derivative += number(along.sum());
        scale += number(along.abs().sum());
      }
    }
    SimulateRequest plain = request_;
    plain.with_bounds = plain.with_cotangents = plain.with_guards = plain.with_differences = false;
    out_.differences = finite_differences(
        [&](double step) { return SimulatorRun(plain).objective_at(directions, step); }, derivative,
        scale);
  }

  static const Gradient* named(const std::vector<Gradient>& gradients, const std::string& input) {
    return &*std::find_if(gradients.begin(), gradients.end(),
                          [&](const Gradient& g) { return g.input == input; });
  }

  bool is_needed_again(std::size_t objective) const {
    return objective == 0 &&
           (request_.with_cotangents || (analysis_ && !request_.run_weights.empty()));
  }

  // Widens the bounds, so that they hold for ranks that start from these weights, too.
  void widen_bounds(const std::vector<double>& weights, const Tensors& wanted) {
    const Tensors grads = gradients(weighted(weights), wanted, /*keep_graph=*/true);
    auto next = grads.begin();
    for (Gradient& bound : out_.bounds)
      for (std::optional<Array>& part : bound.parts) {
        const Array other = bound_array(*next++);
        std::vector<double> widest(other.values().begin(), other.values().end());
        for (std::size_t i = 0; i < widest.size(); ++i)
          widest[i] = std::max(widest[i], part->values()[i]);
        part = Array(part->shape(), std::move(widest));
      }
  }

  // Returns the first objective's gradients. The calls' cotangents come from the same backward
  // pass.
  Tensors gradients_with_calls(const Tensors& wanted, bool keep_graph) {
    Tensors all = wanted;
    for (const SimulatedCall& call : *calls_)
      for (const Tensors* values : {&call.operands, &call.outputs})
        for (const at::Tensor& x : *values)
          if (x.requires_grad()) all.push_back(x);
    Tensors grads = known_gradients(weighted(request_.weights[0]), all, keep_graph);
    auto next = grads.begin() + std::ssize(wanted);
    for (SimulatedCall& call : *calls_)
      for (auto [values, cotangents] : {std::pair{&call.operands, &call.operand_cotangents},
                                        {&call.outputs, &call.output_cotangents}})
        for (const at::Tensor& x : *values)
          cotangents->push_back(x.requires_grad() ? *next++ : at::Tensor());
    grads.resize(wanted.size());
    return with_zeros(std::move(grads), wanted);
  }

  WeightedLosses weighted(const std::vector<double>& weights) { return weighted(losses_, weights); }

  WeightedLosses weighted(const Tensors& losses, const std::vector<double>& weights) {
    return {losses, weights, analysis_ ? &*analysis_ : nullptr};
  }

  void note_bounds(const Leaf& leaf, Tensors::const_iterator first, std::vector<Gradient>& bounds) {
    Gradient bound;
    bound.input = leaf.input->name;
    for (std::size_t i = 0; i < leaf.leaves.size(); ++i, ++first)
      bound.parts.emplace_back(bound_array(*first));
    bounds.push_back(std::move(bound));
  }

  // Says how the largest bound among the parts came about.
  std::string description(const Leaf& leaf, Tensors::const_iterator first) const {
    const auto largest = [this](const at::Tensor& x) {
      const Array bound = bound_array(x);
      return std::accumulate(bound.values().begin(), bound.values().end(), 0.0,
                             [](double a, double b) { return std::max(a, b); });
    };
    const auto worst =
        std::max_element(first, first + static_cast<std::ptrdiff_t>(leaf.leaves.size()),
                         [&](const auto& a, const auto& b) { return largest(a) < largest(b); });
    return analysis_->describe(*worst);
  }

  void keep_cotangents() {
    for (std::size_t s = 0; s < kept_.size(); ++s) {
      StepValue value;
      value.step = out_.steps[s].step;
      Tensors wanted;
      for (const at::Tensor& x : kept_[s])
        if (x.requires_grad()) wanted.push_back(x);
      const Tensors grads = gradients(weighted(request_.weights[0]), wanted, /*keep_graph=*/true);
      auto next = grads.begin();
      for (const at::Tensor& x : kept_[s]) {
        const at::Tensor cotangent = x.requires_grad() ? *next++ : at::zeros_like(x);
        value.by_rank.push_back(array_of(cotangent));
        if (analysis_) value.bound.push_back(bound_array(cotangent));
      }
      out_.cotangents.push_back(std::move(value));
    }
  }

  void keep_single_device() {
    place("single_device");
    const SingleDeviceForward single = run_single_device(program_);
    out_.single_loss = number(single.loss);
    if (analysis_) out_.single_loss_bound = number(analysis_->bound_of(single.loss));
    const Tensors losses{single.loss};
    const std::vector<double> weights{1.0};
    const Tensors grads = gradients(weighted(losses, weights), differentiable(single.leaves),
                                    /*keep_graph=*/false);
    auto next = grads.begin();
    for (const Leaf& leaf : single.leaves) {
      if (!leaf.input->requires_grad) continue;
      out_.single_gradients.push_back(gradient_of(leaf, next));
      if (analysis_) note_bounds(leaf, next, out_.single_bounds);
      next += static_cast<std::ptrdiff_t>(leaf.leaves.size());
    }
  }

  static bool is_zero(const Gradient& bound) {
    return std::all_of(bound.parts.begin(), bound.parts.end(),
                       [](const std::optional<Array>& part) {
                         return std::all_of(part->values().begin(), part->values().end(),
                                            [](double b) { return b == 0; });
                       });
  }

  bool is_exact() const {
    for (const Gradient& g : out_.bounds)
      if (!is_zero(g)) return false;
    for (const double b : out_.loss_bounds)
      if (b != 0) return false;
    return true;
  }

  const SimulateRequest& request_;
  const Program& program_;
  CompiledProgram compiled_;
  std::vector<SimulatedCall>* calls_;
  std::vector<Leaf> leaves_;
  std::optional<ErrorAnalysis> analysis_;
  BackwardReach reach_;
  std::vector<std::vector<c10::IValue>> slots_;  // by rank
  Tensors losses_;
  std::vector<Tensors> kept_;
  std::int64_t noted_bytes_ = 0;  // of inputs and steps so far, views included
  bool is_counted_ = false;
  Simulation out_;
};

Simulation simulated(const SimulateRequest& request, std::vector<SimulatedCall>* calls) {
  Simulation invalid;
  try {
    if (request.drive) return simulate_driven(request);
    return SimulatorRun(request, calls).run();
  } catch (const BoundsTakeLong&) {
    if (calls) calls->clear();
    SimulateRequest without_bounds = request;
    without_bounds.with_bounds = false;
    return simulated(without_bounds, calls);
  } catch (const InvalidAt& e) {
    invalid.invalid = InvalidProgram{e.pointer, e.what(), e.caret};
  } catch (const c10::Error& e) {
    invalid.invalid = InvalidProgram{
        "", std::string("torch refuses the program: ") + e.what_without_backtrace(), ""};
  } catch (const RaisesInBackward& e) {
    invalid.invalid = InvalidProgram{"", e.what(), ""};
  }
  return invalid;
}

}  // namespace

Simulation simulate(const SimulateRequest& request) { return simulated(request, nullptr); }

Simulation simulate_with_calls(const SimulateRequest& request, std::vector<SimulatedCall>& calls) {
  calls.clear();
  return simulated(request, &calls);
}

}  // namespace distgrad
