#include "judge/probes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "judge/closeness.h"
#include "judge/program_edits.h"
#include "judge/user_code_slack.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

// The truth is measured of this many elements of one rank's part; above that some are left out
// (src/python/distgrad/ranks/differences.py).
constexpr std::int64_t kMostMeasured = 256;

using ByRank = std::vector<Array>;

// Returns the inputs as the ranks hold them, or nothing if the simulator cannot say.
std::map<std::string, ByRank> inputs_of(Machine& machine, const Program& program) {
  if (program.inputs.empty()) return {};
  SimulateRequest request;
  request.program = program;
  request.program.steps.clear();
  request.program.truth.clear();
  request.program.single_device.reset();
  for (Input& input : request.program.inputs) input.sync.clear();
  std::map<std::string, std::string> input_of_step;
  for (const Input& input : program.inputs) {
    const std::string name = unused_name(program, "value_of_" + input.name);
    request.program.steps.push_back({name, input.pointer, Expression{input.name, input.pointer}});
    input_of_step[name] = input.name;
  }
  request.program.loss = {program.inputs.front().name + ".sum()", ""};
  request.weights = {std::vector<double>(static_cast<std::size_t>(program.world_size), 1.0)};
  request.leaves_by_rank = true;
  request.with_bounds = false;
  request.with_guards = false;
  request.with_cotangents = true;  // so that expressions are reported
  const Simulation simulation = machine.simulate(request);
  std::map<std::string, ByRank> values;
  if (simulation.invalid) return values;
  for (const StepValue& value : simulation.steps) values[input_of_step[value.step]] = value.by_rank;
  return values;
}

// Returns true if an expression's text uses one of the names.
bool takes(const std::string& text, const std::set<std::string>& names) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return takes_name(text, name); });
}

bool takes(const Step& step, const std::set<std::string>& names) {
  const CodeCall* code = step.code();
  if (!code) return takes(texts_of(step), names);
  return std::ranges::any_of(code->arguments,
                             [&](const Expression& e) { return takes(e.text, names); });
}

// Returns elements of about one size, whose ratios no mistake could have.
ByRank directions_like(const ByRank& values) {
  ByRank directions;
  double phase = 0;
  for (const Array& value : values) {
    std::vector<double> elements;
    for (std::int64_t i = 0; i < value.size(); ++i)
      elements.push_back((i % 2 ? -1 : 1) * (1.25 + 0.5 * std::sin(phase += 1.7)));
    directions.emplace_back(value.shape(), std::move(elements));
  }
  return directions;
}

// Builds the program with its zeros.
class WithZeros {
 public:
  WithZeros(const Program& program, ProbeDetail detail, const std::map<std::string, ByRank>& inputs,
            const std::vector<StepValue>& values)
      : program_(program), detail_(detail) {
    program_.truth.clear();
    program_.single_device.reset();
    program_.steps.clear();
    for (Input& input : program_.inputs) input.sync.clear();
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      if (!program.inputs[i].requires_grad) continue;
      const auto known = inputs.find(program.inputs[i].name);
      if (known == inputs.end()) return;
      // Passes the values, since random numbers depend on the input's name.
      program_.inputs[i] =
          local_input(unused_name(program, program.inputs[i].name + "_"), known->second, false);
      add(program.inputs[i].name, "", program_.inputs[i].name, known->second);
    }
    for (const Step& step : program.steps) {
      program_.steps.push_back(with_own_arguments(step, program));
      if (!step.is_reported()) continue;
      const auto value = std::ranges::find(values, step.name, &StepValue::step);
      if (value == values.end()) return;
      program_.steps.back().name = unused_name(program, step.name + "_");
      add(step.name, "", program_.steps.back().name, value->by_rank);
    }
    is_whole_ = true;
  }

  bool is_whole() const { return is_whole_; }  // false: some value's shape is unknown
  const Program& program() const { return program_; }
  const std::vector<ProbedValue>& probed() const { return probed_; }
  std::int64_t elements() const { return elements_; }  // of all zeros

 private:
  // Defines `name` as `was` plus a zero on each rank.
  void add(const std::string& name, const std::string& taken_by, std::string was,
           const ByRank& value) {
    ByRank zero;
    for (const Array& array : value) {
      zero.push_back(detail_ == ProbeDetail::kElements ? zeros(array.shape()) : Array::scalar(0));
      elements_ += zero.back().size();
    }
    std::string term = unused_name(program_, "zero_at_" + name);
    program_.inputs.push_back(local_input(term, std::move(zero), true));
    if (detail_ == ProbeDetail::kDirection) {
      const std::string direction = unused_name(program_, "direction_at_" + name);
      program_.inputs.push_back(local_input(direction, directions_like(value), false));
      term += " * " + direction;
    }
    const std::string sum =
        taken_by.empty() ? name : unused_name(program_, name + "_for_" + taken_by);
    program_.steps.push_back({sum, "", Expression{was + " + " + term, ""}});
    probed_.push_back({name, taken_by, {}, {}, {}});
    if (taken_by.empty()) values_[name] = value;
  }

  // Gives each argument that other steps take, too, a zero of its own in this call.
  Step with_own_arguments(Step step, const Program& program) {
    auto* code = std::get_if<CodeCall>(&step.what);
    if (!code) return step;
    for (Expression& argument : code->arguments) {
      const auto value = values_.find(argument.text);
      if (value == values_.end() || count_of_takers(program, argument.text) < 2) continue;
      add(argument.text, step.name, argument.text, value->second);
      argument.text = program_.steps.back().name;
    }
    return step;
  }

  static std::ptrdiff_t count_of_takers(const Program& program, const std::string& name) {
    return std::ranges::count_if(program.steps, [&](const Step& s) { return takes(s, {name}); }) +
           takes(program.loss.text, {name});
  }

  Program program_;
  ProbeDetail detail_;
  std::vector<ProbedValue> probed_;       // by name, in the order of the inputs that require grad
  std::map<std::string, ByRank> values_;  // of those that have a zero
  std::int64_t elements_ = 0;
  bool is_whole_ = false;
};

// Returns how far each of the ranks' elements may lie off; infinite where the truth is unknown.
std::vector<ByRank> bounds_of(const Simulation& simulation, DType dtype) {
  std::vector<ByRank> bounds;
  for (std::size_t i = 0; i < simulation.bounds.size(); ++i) {
    double largest = 0;
    for (const auto& part : simulation.gradients[0][i].parts)
      largest = std::max(largest, largest_magnitude(part->values()));
    const double slack = roundings_of_users(dtype) * unit_roundoff(dtype) * largest;
    bounds.emplace_back();
    for (std::size_t r = 0; r < simulation.bounds[i].parts.size(); ++r) {
      const Array& bound = *simulation.bounds[i].parts[r];
      std::vector<double> values;
      for (const double b : bound.values()) values.push_back(2 * b + slack);
      for (const UndecidedElement& e : simulation.undecided_elements)
        if (e.input == simulation.bounds[i].input && e.part == static_cast<int>(r))
          values[static_cast<std::size_t>(e.element)] = std::numeric_limits<double>::infinity();
      bounds.back().emplace_back(bound.shape(), std::move(values));
    }
  }
  return bounds;
}

bool is_within(const Array& seen, const Array& wanted, const Array& bound) {
  return seen.shape() == wanted.shape() &&
         difference(seen.values(), wanted.values(), [&](std::size_t e) {
           return bound.values()[e];
         }).equal;
}

bool has_all_parts(const std::vector<Gradient>& gradients, std::size_t inputs, std::size_t ranks) {
  return gradients.size() == inputs && std::ranges::all_of(gradients, [&](const Gradient& g) {
           return g.parts.size() == ranks &&
                  std::ranges::all_of(g.parts, [](const auto& part) { return part.has_value(); });
         });
}

// If the losses differ, the program does not bear the change: its code looks at its arguments.
bool has_same_losses(const Simulation& a, const Simulation& b) {
  constexpr double kRoundings = 1e-9;
  for (std::size_t r = 0; r < a.losses.size(); ++r)
    if (!within(a.losses[r], b.losses[r], kRoundings * std::abs(b.losses[r]) + b.loss_bounds[r]))
      return false;
  return a.losses.size() == b.losses.size();
}

}  // namespace

std::vector<std::string> Probed::parting_steps(const Program& program) const {
  const auto last = std::find_if(values.rbegin(), values.rend(), [](const ProbedValue& v) {
    return v.taken_by.empty() && !v.wrong_ranks.empty();
  });
  if (last == values.rend()) return {};
  std::set<std::string> names{last->name};  // the value, and what expressions make of it
  std::vector<std::string> steps, wrong;
  for (const Step& step : program.steps) {
    if (!takes(step, names)) continue;
    const auto own = std::ranges::find_if(values, [&](const ProbedValue& v) {
      return v.name == last->name && v.taken_by == step.name;
    });
    if (!step.is_reported())
      names.insert(step.name);
    else if (own == values.end())
      steps.push_back(step.name);
    else if (!own->wrong_ranks.empty())
      wrong.push_back(step.name);
  }
  if (!wrong.empty()) return wrong;
  if (takes(program.loss.text, names)) steps.emplace_back();
  return steps;
}

std::optional<Probed> probed(Machine& machine, const Program& program, ProbeDetail detail,
                             const std::vector<double>& truth_weights,
                             const std::vector<double>& run_weights, const Simulation& simulation) {
  Probed result;
  result.inputs = inputs_of(machine, program);
  const WithZeros zeros(program, detail, result.inputs, simulation.steps);
  if (!zeros.is_whole() || zeros.probed().empty()) return std::nullopt;
  if (needs_differences(program.steps) && zeros.elements() > kMostMeasured) return std::nullopt;
  SimulateRequest request;
  request.program = zeros.program();
  request.weights = {truth_weights};
  request.with_guards = false;
  const Simulation truth = machine.simulate(request);
  const auto ranks = static_cast<std::size_t>(program.world_size);
  const std::size_t count = zeros.probed().size();
  if (truth.invalid || truth.gradients.size() != 1 ||
      !has_all_parts(truth.gradients[0], count, ranks) ||
      !has_all_parts(truth.bounds, count, ranks) || !has_same_losses(truth, simulation))
    return std::nullopt;
  const auto run = machine.run(zeros.program(), run_weights);
  if (!run || run->ranks.size() != ranks) return std::nullopt;
  const std::vector<ByRank> bounds = bounds_of(truth, program.dtype);
  for (std::size_t i = 0; i < count; ++i) {
    ProbedValue value = zeros.probed()[i];
    for (std::size_t r = 0; r < ranks; ++r) {
      value.truth.push_back(*truth.gradients[0][i].parts[r]);
      if (run->ranks[r].gradients.size() != count) return std::nullopt;
      const auto& seen = run->ranks[r].gradients[i];
      value.ranks.push_back(seen ? *seen : distgrad::zeros(value.truth[r].shape()));
      const bool is_held =
          !truth.held.empty() && is_within(value.ranks[r], *truth.held[i].parts[r], bounds[i][r]);
      if (!is_held && !is_within(value.ranks[r], value.truth[r], bounds[i][r]))
        value.wrong_ranks.push_back(static_cast<int>(r));
    }
    result.values.push_back(std::move(value));
  }
  return result;
}

}  // namespace distgrad
