#include "rank/simulator.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "expression/syntax.h"
#include "rank/backward_reach.h"
#include "rank/compiled_program.h"
#include "rank/driven_call.h"
#include "rank/finite_differences.h"
#include "rank/input_values.h"
#include "rank/memory_need.h"
#include "rank/simulated_call.h"
#include "rules/rule.h"
#include "tolerance/error_analysis.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kManyElements = std::int64_t{1} << 20;  // all ranks' inputs together
constexpr std::int64_t kManyResults = std::int64_t{1} << 21;   // of all operators, on all ranks

// Thrown where bounds may wait.
struct BoundsTakeLong {};

// The differentiable inputs: the leaves, and what each virtual rank sees of them.
struct Leaf {
  const Input* input = nullptr;
  Tensors leaves;   // one a rank, or one
  Tensors by_rank;  // what the ranks hold
};

Leaf make_leaf(const Program& program, const Input& input, bool by_rank) {
  Leaf leaf;
  leaf.input = &input;
  // A value of nobody else's: local_value() and full_value() make a new one, pieces are views.
  const auto exact = [](const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? x : x.to(at::kDouble);
  };
  const auto own_piece = [&](const at::Tensor& x) {
    return exact(x.detach()).clone(at::MemoryFormat::Contiguous);
  };
  if (input.is_local()) {
    for (int r = 0; r < program.world_size; ++r)
      leaf.leaves.push_back(exact(local_value(program, input, r)));
  } else if (by_rank) {
    for (const at::Tensor& x : laid_out(program, input, full_value(program, input)))
      leaf.leaves.push_back(own_piece(x));
  } else {
    leaf.leaves.push_back(exact(full_value(program, input)));
  }
  if (input.requires_grad)
    for (at::Tensor& x : leaf.leaves) x.requires_grad_(true);
  leaf.by_rank = leaf.leaves.size() == 1 && !input.is_local() && !by_rank
                     ? laid_out(program, input, leaf.leaves[0])
                     : leaf.leaves;
  return leaf;
}

// detach(), item(), a tensor made a Python number, or a cast, whose rounding finite differences
// would take for a slope.
bool takes_values_out(const Syntax& syntax) {
  constexpr std::string_view kMethods[] = {"detach", "item",     "to",  "type", "float",
                                           "half",   "bfloat16", "int", "long", "bool"};
  constexpr std::string_view kFunctions[] = {"float", "int", "bool"};
  const auto is_among = [&](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (syntax.kind == Syntax::Kind::kAttribute && is_among(kMethods, syntax.text)) return true;
  const bool is_call =
      syntax.kind == Syntax::Kind::kCall && syntax.children[0]->kind == Syntax::Kind::kName;
  if (is_call && is_among(kFunctions, syntax.children[0]->text)) return true;
  const auto child_does = [](const SyntaxPtr& child) { return child && takes_values_out(*child); };
  return std::any_of(syntax.children.begin(), syntax.children.end(), child_does) ||
         std::any_of(syntax.keywords.begin(), syntax.keywords.end(),
                     [&](const auto& keyword) { return child_does(keyword.second); });
}

// Not item(), which the error analysis takes for a decision that depends on the value.
double number(const at::Tensor& scalar) { return *scalar.detach().const_data_ptr<double>(); }

Gradient gradient_of(const Leaf& leaf, Tensors::const_iterator first) {
  Gradient g;
  g.input = leaf.input->name;
  for (std::size_t i = 0; i < leaf.leaves.size(); ++i, ++first)
    g.parts.emplace_back(array_of(*first));
  return g;
}

class Oracle {
 public:
  // `calls`: where to tell of the calls of collectives; may be null.
  explicit Oracle(const SimulateRequest& request, std::vector<SimulatedCall>* calls = nullptr)
      : request_(request),
        program_(request.program),
        compiled_(program_, DType::kFloat64),
        calls_(calls) {}

  Simulation run() {
    try {
      run_all();
    } catch (const std::exception&) {
      count_memory();  // which says more than "can't allocate"
      throw;
    }
    return std::move(out_);
  }

  // The declared objective where each element of the leaves that require grad is `step` times
  // `directions` further on. Call it instead of run().
  double objective_at(const Tensors& directions, double step) {
    is_counted_ = true;                                             // run() did
    const at::AutoGradMode graph(compiled_.loss_is_gradient_norm);  // which has a backward inside
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
      if (program_.single_device) run_single_device();
      for (const Program::Truth& truth : program_.truth) evaluate_truth(truth);
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

  // Few inputs may have many values made of them.
  void look_at_bounds() const {
    if (request_.bounds_may_wait && analysis_ && analysis_->elements() > kManyResults)
      throw BoundsTakeLong{};
  }

  void place(const std::string& text) {
    if (analysis_) analysis_->set_place(text);
  }

  // Once they are large, what all of them take is counted.
  void note_bytes(std::int64_t bytes) {
    noted_bytes_ += bytes;
    if (noted_bytes_ >= kWorthCounting) count_memory();
  }

  void count_memory() {
    if (!std::exchange(is_counted_, true)) require_memory(compiled_, given_memory_bytes());
  }

  Array bound_array(const at::Tensor& x) const { return array_of(analysis_->bound_of(x)); }

  // By how much the largest `mean` of a sync divides, after a backward whose values are as many
  // times larger.
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
      if (loss.numel() != 1) {
        std::string shape;
        for (const std::int64_t s : loss.sizes())
          shape += (shape.empty() ? "" : ", ") + std::to_string(s);
        throw InvalidAt(program_.loss.pointer, "the loss has " + std::to_string(loss.numel()) +
                                                   " elements (shape [" + shape + "] on rank " +
                                                   std::to_string(r) +
                                                   "); it must have one: take .sum() or .mean()");
      }
      const at::Tensor scalar = loss.dim() == 0 ? loss : loss.reshape({});
      losses.push_back(scalar.scalar_type() == at::kDouble ? scalar : scalar.to(at::kDouble));
    }
    losses_ = compiled_.loss_is_gradient_norm ? squared_gradient_norms(losses) : losses;
    for (const at::Tensor& loss : losses_) {
      out_.losses.push_back(number(loss));
      if (analysis_) out_.loss_bounds.push_back(number(analysis_->bound_of(loss)));
    }
  }

  // By rank, Σ ‖∂(Σ_r l_r)/∂x‖² over the rank's inputs x, as part of the graph.
  Tensors squared_gradient_norms(const Tensors& losses) {
    place("squared_gradient_norm");
    Tensors wanted, counted, norms(losses.size(), at::zeros({}, at::kDouble));
    for (const Leaf& leaf : leaves_) {
      if (!leaf.input->requires_grad) continue;
      if (!leaf.input->is_local())
        throw InvalidAt(leaf.input->pointer,
                        "squared_gradient_norm needs inputs whose layout is \"local\" (or without "
                        "gradient): of another one no rank has the gradient to take the norm of");
      wanted.insert(wanted.end(), leaf.leaves.begin(), leaf.leaves.end());
    }
    for (const at::Tensor& loss : losses)
      if (loss.requires_grad()) counted.push_back(loss);
    if (wanted.empty() || counted.empty()) return norms;
    const Tensors grads = torch::autograd::grad(
        {at::stack(counted)}, wanted, {at::ones({std::ssize(counted)}, at::kDouble)},
        /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true);
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined())
        norms[i % norms.size()] = norms[i % norms.size()] + (grads[i] * grads[i]).sum();
    return norms;
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
    Tensors wanted;
    for (const Leaf& leaf : leaves_)
      if (leaf.input->requires_grad)
        wanted.insert(wanted.end(), leaf.leaves.begin(), leaf.leaves.end());
    place("backward");
    for (std::size_t i = 0; i < request_.weights.size(); ++i) {
      const bool last = i + 1 == request_.weights.size();
      const bool keep_graph = !last || is_needed_again(i);
      if (i == 0) reach_.begin();
      const Tensors grads = i == 0 && calls_
                                ? gradients_with_calls(wanted, keep_graph)
                                : gradients(losses_, request_.weights[i], wanted, keep_graph);
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

  // A value taken out of the graph moves with the inputs and has no gradient: that is meant, and no
  // mistake of anybody.
  bool cuts_graph() const {
    const auto cuts = [](const Expression& e) {
      return takes_values_out(*parse_expression(e.text));
    };
    return cuts(program_.loss) ||
           std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
             const CollectiveCall* call = step.collective();
             return cuts(call ? call->operand : std::get<Expression>(step.what));
           });
  }

  void check_by_differences() {
    if (cuts_graph() || request_.leaves_by_rank || out_.gradients.empty()) return;
    analysis_.reset();  // it would watch these runs, too
    Tensors directions;
    double derivative = 0, scale = 0;
    std::uint64_t seed = 0;
    for (const Leaf& leaf : leaves_) {
      if (!leaf.input->requires_grad) continue;
      const Gradient& gradient = *named(out_.gradients[0], leaf.input->name);
      for (std::size_t i = 0; i < leaf.leaves.size(); ++i) {
        directions.push_back(direction_at(leaf.leaves[i].detach(), ++seed));
        const at::Tensor along = tensor_of(*gradient.parts[i]) * directions.back();
        derivative += number(along.sum());
        scale += number(along.abs().sum());
      }
    }
    SimulateRequest plain = request_;
    plain.with_bounds = plain.with_cotangents = plain.with_guards = plain.with_differences = false;
    out_.differences = finite_differences(
        [&](double step) { return Oracle(plain).objective_at(directions, step); }, derivative,
        scale);
  }

  static const Gradient* named(const std::vector<Gradient>& gradients, const std::string& input) {
    return &*std::find_if(gradients.begin(), gradients.end(),
                          [&](const Gradient& g) { return g.input == input; });
  }

  // Of either sign, 0.5 to 1 times as large as each element of x (where that is 0, as large as 1),
  // and no two alike.
  static at::Tensor direction_at(const at::Tensor& x, std::uint64_t seed) {
    const at::Tensor place =
        at::arange(x.numel(), at::kDouble) + static_cast<double>(1000003 * seed);
    const at::Tensor noise =
        (at::sin(place * 12.9898) * 43758.5453).frac().abs().reshape(x.sizes());  // in [0, 1)
    const at::Tensor sign = at::where(at::cos(place * 78.233) < 0, at::full({}, -1.0, at::kDouble),
                                      at::ones({}, at::kDouble))
                                .reshape(x.sizes());
    const at::Tensor size = at::where(x == 0, at::ones_like(x), x.abs());
    return sign * (0.5 + 0.5 * noise) * size;
  }

  bool is_needed_again(std::size_t objective) const {
    return objective == 0 &&
           (request_.with_cotangents || (analysis_ && !request_.run_weights.empty()));
  }

  // The bounds hold for ranks that start from these weights, too.
  void widen_bounds(const std::vector<double>& weights, const Tensors& wanted) {
    const Tensors grads = gradients(losses_, weights, wanted, /*keep_graph=*/true);
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

  // Of the first objective; the cotangents of the calls come from the same backward pass.
  Tensors gradients_with_calls(const Tensors& wanted, bool keep_graph) {
    Tensors all = wanted;
    for (const SimulatedCall& call : *calls_)
      for (const Tensors* values : {&call.operands, &call.outputs})
        for (const at::Tensor& x : *values)
          if (x.requires_grad()) all.push_back(x);
    Tensors grads = known_gradients(losses_, request_.weights[0], all, keep_graph);
    auto next = grads.begin() + std::ssize(wanted);
    for (SimulatedCall& call : *calls_)
      for (auto [values, cotangents] : {std::pair{&call.operands, &call.operand_cotangents},
                                        {&call.outputs, &call.output_cotangents}})
        for (const at::Tensor& x : *values)
          cotangents->push_back(x.requires_grad() ? *next++ : at::Tensor());
    grads.resize(wanted.size());
    return with_zeros(std::move(grads), wanted);
  }

  // ∂(Σ w_r l_r)/∂wanted, zeros where there is no path.
  Tensors gradients(const Tensors& losses, const std::vector<double>& weights,
                    const Tensors& wanted, bool keep_graph) {
    return with_zeros(known_gradients(losses, weights, wanted, keep_graph), wanted);
  }

  static Tensors with_zeros(Tensors grads, const Tensors& wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (!grads[i].defined()) grads[i] = at::zeros_like(wanted[i].detach());
    return grads;
  }

  // The same, undefined where there is no path. Losses of weight 0 take no part: their derivative
  // may be infinite.
  Tensors known_gradients(const Tensors& losses, const std::vector<double>& weights,
                          const Tensors& wanted, bool keep_graph) {
    Tensors counted;
    std::vector<double> cotangents;
    for (std::size_t r = 0; r < losses.size(); ++r) {
      if (weights[r] == 0 || !losses[r].requires_grad()) continue;
      counted.push_back(losses[r]);
      cotangents.push_back(weights[r]);
    }
    Tensors grads(wanted.size());
    if (!counted.empty() && !wanted.empty()) {
      const at::Tensor start = at::tensor(cotangents, at::kDouble);
      if (analysis_) analysis_->add_bound(start, analysis_->rounding_of(start));
      grads = torch::autograd::grad({at::stack(counted)}, wanted, {start}, keep_graph,
                                    /*create_graph=*/false,
                                    /*allow_unused=*/true);
    }
    return grads;
  }

  void note_bounds(const Leaf& leaf, Tensors::const_iterator first, std::vector<Gradient>& bounds) {
    Gradient bound;
    bound.input = leaf.input->name;
    for (std::size_t i = 0; i < leaf.leaves.size(); ++i, ++first)
      bound.parts.emplace_back(bound_array(*first));
    bounds.push_back(std::move(bound));
  }

  // How the largest bound among the parts came about.
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
      const Tensors grads = gradients(losses_, request_.weights[0], wanted, /*keep_graph=*/true);
      auto next = grads.begin();
      for (const at::Tensor& x : kept_[s]) {
        const at::Tensor cotangent = x.requires_grad() ? *next++ : at::zeros_like(x);
        value.by_rank.push_back(array_of(cotangent));
        if (analysis_) value.bound.push_back(bound_array(cotangent));
      }
      out_.cotangents.push_back(std::move(value));
    }
  }

  void run_single_device() {
    place("single_device");
    Scope scope = size_scope(program_);
    std::map<std::string, c10::IValue> values;
    std::vector<Leaf> whole;
    for (const Input& input : program_.inputs) {
      Leaf leaf = make_leaf(program_, input, false);
      scope[input.name] = input.is_local() ? NameType::kTensorList : NameType::kTensor;
      if (input.is_local()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& x : leaf.leaves) list.push_back(x);
        values[input.name] = list;
      } else {
        values[input.name] = leaf.leaves[0];
      }
      whole.push_back(std::move(leaf));
    }
    const auto evaluate = [&](const Expression& e) { return evaluate_single(e, scope, values); };
    for (const Step& step : program_.single_device->steps) {
      values[step.name] = evaluate(std::get<Expression>(step.what));
      scope[step.name] = NameType::kTensor;
    }
    const at::Tensor loss = evaluate(program_.single_device->loss);
    if (loss.numel() != 1)
      throw InvalidAt(
          program_.single_device->loss.pointer,
          "the loss has " + std::to_string(loss.numel()) + " elements; it must have one");
    const at::Tensor scalar = loss.reshape({}).to(at::kDouble);
    out_.single_loss = number(scalar);
    if (analysis_) out_.single_loss_bound = number(analysis_->bound_of(scalar));
    Tensors wanted;
    for (const Leaf& leaf : whole)
      if (leaf.input->requires_grad)
        wanted.insert(wanted.end(), leaf.leaves.begin(), leaf.leaves.end());
    const Tensors grads = gradients({scalar}, {1.0}, wanted, false);
    auto next = grads.begin();
    for (const Leaf& leaf : whole) {
      if (!leaf.input->requires_grad) continue;
      out_.single_gradients.push_back(gradient_of(leaf, next));
      if (analysis_) note_bounds(leaf, next, out_.single_bounds);
      next += static_cast<std::ptrdiff_t>(leaf.leaves.size());
    }
  }

  at::Tensor evaluate_single(const Expression& e, const Scope& scope,
                             const std::map<std::string, c10::IValue>& values) {
    try {
      const auto code = compile_expression(e.text, scope, DType::kFloat64);
      std::vector<c10::IValue> arguments;
      for (const std::string& name : code->names()) {
        const auto found = values.find(name);
        arguments.push_back(found != values.end() ? found->second
                                                  : c10::IValue(value_of_name(program_, name, 0)));
      }
      return code->evaluate(std::move(arguments));
    } catch (const InvalidExpression& error) {
      throw InvalidAt(e.pointer, error.what(), error.caret());
    }
  }

  void evaluate_truth(const Program::Truth& truth) {
    const Leaf* leaf = nullptr;
    for (const Leaf& l : leaves_)
      if (l.input->name == truth.input) leaf = &l;
    if (!leaf) return;
    Gradient g;
    g.input = truth.input;
    const bool local = leaf->input->is_local();
    const int parts = local ? program_.world_size : 1;
    for (int r = 0; r < parts; ++r) {
      const Shape shape =
          (local || request_.leaves_by_rank ? leaf->leaves[r] : leaf->leaves[0]).sizes().vec();
      g.parts.emplace_back(array_of(as_gradient(truth, truth_value(truth, local, r), shape)));
    }
    out_.file_truth.push_back(std::move(g));
  }

  at::Tensor truth_value(const Program::Truth& truth, bool local, int rank) {
    if (const auto* one = std::get_if<Array>(&truth.value)) return tensor_of(*one);
    if (const auto* by_rank = std::get_if<std::vector<Array>>(&truth.value))
      return tensor_of(by_rank->at(rank));
    Scope scope = local ? rank_scope(program_) : size_scope(program_);
    std::map<std::string, c10::IValue> values;
    for (const Leaf& l : leaves_) {
      if (l.input->is_local() && !local) continue;  // has no value that is not a rank's
      scope[l.input->name] = NameType::kTensor;
      values[l.input->name] = (l.input->is_local() ? l.leaves[rank] : l.leaves[0]).detach();
    }
    const Expression& e = std::get<Expression>(truth.value);
    return evaluate_alone(program_, e, scope, rank, DType::kFloat64, values)
        .detach()
        .to(at::kDouble);
  }

  // A closed form may be one number for a whole tensor.
  at::Tensor as_gradient(const Program::Truth& truth, const at::Tensor& value, const Shape& shape) {
    if (value.sizes() == at::IntArrayRef(shape)) return value;
    if (value.numel() == 1 && std::holds_alternative<Expression>(truth.value))
      return value.expand(shape);
    throw InvalidAt(truth.pointer, "the truth has shape " + c10::str(value.sizes()) +
                                       ", the input " + c10::str(at::IntArrayRef(shape)));
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
    return Oracle(request, calls).run();
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
