#include "verify/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "judge/chain.h"
#include "judge/closeness.h"
#include "judge/phrases.h"
#include "judge/probes.h"
#include "judge/program_edits.h"
#include "model/ranks_text.h"
#include "report/program_text.h"
#include "report/words.h"

namespace distgrad {
namespace {

using Kind = ExplainedValue::Kind;

// Both were computed in float64 and differ only in the order of their sums.
constexpr double kRoundings = 1e-10;

// Says this for code if there are too many elements to measure, or if a run in which a value
// between is copied is right.
constexpr const char* kNotKnown = "Which step's backward is wrong is not known.";
constexpr const char* kPartsHere =
    "the cotangents part here: the backward of this step does not give what is right";

// --- The program, traced ---

// Holds what one simulation says of every named value: inputs, steps and the loss, in this order.
struct Traced {
  std::map<std::string, std::vector<Array>> values, cotangents;  // by name of the input or step
  std::vector<double> losses, weights;

  bool empty() const { return losses.empty(); }
};

// Makes each input a step for a moment, since the simulator reports values and cotangents of steps
// only.
Traced traced(Program program, const std::vector<double>& weights, Machine& machine) {
  SimulateRequest request;
  std::map<std::string, std::string> input_of_step;
  std::vector<Step> inputs;
  for (const Input& input : program.inputs) {
    const std::string name = unused_name(program, "input_" + input.name);
    inputs.push_back({name, input.pointer, Expression{input.name, input.pointer}});
    input_of_step[name] = input.name;
  }
  program.steps.insert(program.steps.begin(), inputs.begin(), inputs.end());
  request.program = std::move(program);
  request.weights = {weights};
  request.leaves_by_rank = true;
  request.with_bounds = false;
  request.with_guards = false;
  request.with_cotangents = true;
  const Simulation simulation = machine.simulate(request);
  Traced all;
  if (simulation.invalid) return all;
  const auto named = [&](const std::string& step) {
    const auto found = input_of_step.find(step);
    return found == input_of_step.end() ? step : found->second;
  };
  for (const StepValue& v : simulation.steps) all.values[named(v.step)] = v.by_rank;
  for (const StepValue& v : simulation.cotangents) all.cotangents[named(v.step)] = v.by_rank;
  all.losses = simulation.losses;
  all.weights = weights;
  return all;
}

std::vector<Array> of(const std::map<std::string, std::vector<Array>>& all,
                      const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? std::vector<Array>() : found->second;
}

std::vector<Array> scalars(const std::vector<double>& values) {
  std::vector<Array> all;
  for (const double v : values) all.push_back(Array::scalar(v));
  return all;
}

// --- Words ---

std::string layout_phrase(const Input& input) {
  std::string text;
  for (const AxisLayout& l : input.layout) {
    const Layout& layout = l.layout;
    const std::string word = layout.kind == Layout::Kind::kLocal ? "local: each rank its own"
                             : layout.kind == Layout::Kind::kReplicate
                                 ? "replicate: a copy on each rank"
                             : layout.kind == Layout::Kind::kInvariant
                                 ? "invariant: a copy on each rank that must hold the full gradient"
                                 : fmt::format("shard: a piece of dim {} on each rank", layout.dim);
    text += (text.empty() ? "" : "; ") + (l.axis.empty() ? word : l.axis + " " + word);
  }
  for (const auto& [axis, how] : input.sync)
    text += fmt::format("; gradient {} over the ranks{} after backward",
                        how == Input::Sync::kSum ? "summed" : "averaged",
                        axis.empty() ? "" : " along " + axis);
  if (!input.requires_grad) text += "; no gradient wanted";
  return text;
}

std::string setting_of(const Case& c) {
  const std::string objective = spelled(c.objective);
  return fmt::format(
      "{} carries out the collectives, over {}, on {} in {}. Every rank calls backward on its own "
      "loss l_r; meant is the derivative of J, declared as \"{}\": {}.",
      c.subject, c.backend, count_text(c.world_size, "rank"), traits(c.dtype).name, objective,
      meaning_of_objective(objective));
}

// --- Where the two part ---

bool differs(const std::vector<Array>& truth, const std::vector<Array>& seen) {
  if (truth.size() != seen.size()) return !truth.empty() && !seen.empty();
  double largest = 0;
  for (const Array& a : truth) largest = std::max(largest, largest_magnitude(a.values()));
  const double slack = std::isfinite(largest) ? kRoundings * largest : 0;
  for (std::size_t r = 0; r < truth.size(); ++r) {
    if (truth[r].shape() != seen[r].shape()) return true;
    for (std::int64_t i = 0; i < truth[r].size(); ++i)
      if (!within(seen[r][i], truth[r][i], slack)) return true;
  }
  return false;
}

class Explainer {
 public:
  explicit Explainer(const Conclusion& conclusion)
      : c_(conclusion), program_(conclusion.asked.program) {
    // These are the weights that the remedy of pytorch#58005 starts with. With them the adjoint is
    // the truth everywhere, also if only one of several equal losses counts.
    const auto true_weights = backward_weights(program_, c_.which.objective, true);
    if (has_code(program_.steps))
      trace_code(true_weights);
    else
      truth_ = traced(program_, true_weights, c_.machine);
  }

  Explanation run() {
    if (c_.which.scenario) out_.note = c_.which.scenario->note;
    out_.setting = setting_of(c_.which);
    list_values();
    note_scales();
    if (is_error()) {
      explain_error();
    } else if (!c_.comparison) {
      out_.parting = "Nothing was observed.";
    } else {
      explain_comparison();
    }
    return std::move(out_);
  }

 private:
  void list_values() {
    for (const Input& input : program_.inputs) {
      ExplainedValue v{.kind = Kind::kInput,
                       .title = fmt::format("{}   ({})", input.name, layout_phrase(input)),
                       .value = of(truth_.values, input.name),
                       .observed_value = {},
                       .cotangent = {},
                       .ranks_cotangent = {},
                       .mark = {}};
      if (input.requires_grad) v.cotangent = of(truth_.cotangents, input.name);
      add(input.name, std::move(v));
    }
    for (const Step& step : program_.steps)
      add(step.name, {.kind = Kind::kStep,
                      .title = step.name + " = " + step_text(step),
                      .value = of(truth_.values, step.name),
                      .observed_value = {},
                      .cotangent = of(truth_.cotangents, step.name),
                      .ranks_cotangent = {},
                      .mark = {}});
    add("", {.kind = Kind::kLoss,
             .title = "loss: l_r = " + program_.loss.text,
             .value = scalars(c_.simulation.losses),
             .observed_value = {},
             .cotangent = scalars(truth_.weights),
             .ranks_cotangent = {},
             .mark = {}});
  }

  void add(std::string name, ExplainedValue value) {
    names_.push_back(std::move(name));
    out_.values.push_back(std::move(value));
  }

  ExplainedValue* value_named(const std::string& name) {  // "": the loss
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? nullptr
                                 : &out_.values[static_cast<std::size_t>(found - names_.begin())];
  }

  // Code cannot be replayed, but the values between its calls can be probed.
  void trace_code(const std::vector<double>& true_weights) {
    if (!c_.comparison || c_.comparison->forward) return;
    const auto probe = [&](ProbeDetail detail) {
      return probed(c_.machine, program_, detail, true_weights, run_weights(), c_.simulation);
    };
    probed_ = probe(ProbeDetail::kElements);
    const bool has_elements = probed_.has_value();
    if (!probed_) probed_ = probe(ProbeDetail::kDirection);
    if (!probed_) return;
    truth_.weights = true_weights;
    truth_.losses = c_.simulation.losses;
    truth_.values = probed_->inputs;
    for (const StepValue& v : c_.simulation.steps) truth_.values[v.step] = v.by_rank;
    if (!has_elements) return;
    for (const ProbedValue& v : probed_->values)
      if (v.taken_by.empty()) truth_.cotangents[v.name] = v.truth;
  }

  // Notes what differs from what a reader would compute from J alone.
  void note_scales() {
    Program without_sync = program_;
    for (Input& input : without_sync.inputs) input.sync.clear();
    if (!truth_.empty() &&
        backward_weights(without_sync, c_.which.objective, true) != truth_.weights)
      out_.remarks.push_back(
          "A division by the number of ranks is left to a sync of \"mean\" after backward: the "
          "cotangents and gradients above are from before it.");
    if (std::any_of(program_.inputs.begin(), program_.inputs.end(),
                    [](const Input& i) { return i.requires_grad && !i.is_local(); }))
      out_.remarks.push_back(
          "The gradient of an input that is not local is what each rank has of it by itself, "
          "before anything is summed, joined or synchronised.");
  }

  bool is_error() const {
    return c_.run &&
           (c_.run->error || std::any_of(c_.run->ranks.begin(), c_.run->ranks.end(),
                                         [](const RankResult& r) { return r.error.has_value(); }));
  }

  void explain_error() {
    const RankError* error = c_.run->error ? &*c_.run->error : nullptr;
    for (const RankResult& rank : c_.run->ranks)
      if (!error && rank.error) error = &*rank.error;
    const std::string who = error->rank < 0 ? "The ranks" : fmt::format("Rank {}", error->rank);
    const std::string where = error->step.empty() ? "" : " in step " + error->step;
    out_.parting =
        fmt::format("{} did not get through{} ({}); the values above are the simulation's.", who,
                    where, name_of(error->kind));
    if (ExplainedValue* v = error->step.empty() ? nullptr : value_named(error->step))
      v->mark = fmt::format("{} did not get through here ({})", who, name_of(error->kind));
  }

  void explain_comparison() {
    if (c_.comparison->equal()) {
      out_.parting = "Nowhere: the ranks' forward values and gradients are the simulation's.";
      return note_unlike_start();
    }
    if (!c_.simulation.undecided.empty()) {
      out_.parting = "That is not to be decided: " + c_.simulation.undecided.front() + ".";
      return;
    }
    if (c_.result.verdict == Verdict::kDisputed) {
      out_.parting = "That is disputed: " + c_.result.why + ".";
      return;
    }
    if (c_.comparison->forward) return explain_forward(*c_.comparison->forward);
    if (c_.comparison->gradients_equal()) {
      out_.parting =
          "Not on the ranks, whose values and gradients are the simulation's: it is the file that "
          "says otherwise (`truth` or `single_device`); see below.";
      return;
    }
    explain_backward();
  }

  void explain_forward(const ForwardDifference& forward) {
    ExplainedValue* first = value_named(forward.step);
    first->observed_value = forward.distributed;
    first->mark = fmt::format("the values part here, in forward, on {}", ranks_text(forward.ranks));
    const std::string what =
        forward.step.empty() ? "the loss" : "the forward value of step " + forward.step;
    out_.parting = fmt::format("In forward: {} on {} is the first that is not the simulation's.",
                               what, ranks_text(forward.ranks));
    show_later_values(forward.step);
  }

  // Shows what follows from the first difference. The ranks send only the values of collectives and
  // calls.
  void show_later_values(const std::string& after) {
    std::size_t reported = 0;
    bool passed = false;
    for (const Step& step : program_.steps) {
      if (!step.is_reported()) continue;
      ExplainedValue& v = *value_named(step.name);
      std::vector<Array> observed;
      for (const RankResult& rank : c_.run->ranks)
        if (reported < rank.steps.size()) observed.push_back(rank.steps[reported]);
      if (passed && differs(v.value, observed)) v.observed_value = std::move(observed);
      passed = passed || step.name == after;
      ++reported;
    }
    std::vector<Array> losses = scalars(c_.comparison->distributed_losses);
    if (ExplainedValue& v = out_.values.back();
        v.observed_value.empty() && differs(v.value, losses))
      v.observed_value = std::move(losses);
  }

  std::vector<double> run_weights() const {
    return backward_weights(program_, c_.which.objective, divides_replicated(c_.which, program_));
  }

  bool starts_alike() const { return truth_.empty() || run_weights() == truth_.weights; }

  // J counts one of several equal losses, but every rank starts as if its own were that one.
  // (Otherwise the two agree: both are the same on all ranks.)
  std::string unlike_start_text() const {
    return fmt::format(
        "Backward starts with {} on every rank, as in training scripts. But the losses are one and "
        "the same function, so that J counts {} of each.",
        ratio_text(run_weights().front()), ratio_text(truth_.weights.front()));
  }

  void note_unlike_start() {
    if (starts_alike()) return;
    out_.remarks.push_back(unlike_start_text() +
                           " So on their way the ranks' own cotangents may be larger than those "
                           "above and still lead to the right gradients.");
  }

  void explain_backward() {
    if (probed_) {
      out_.how_known = "the gradient of a zero that is added to each value, in a second run";
      show_probed();
    } else {
      out_.how_known = "observed at every collective, and by the chain rule between them";
      show_ranks_cotangents(observed());
    }
    mark_blamed();
    if (!starts_alike()) out_.values.back().mark = "backward starts on another scale here";
    out_.parting = starts_alike() ? "" : unlike_start_text() + " ";
    out_.parting += parting_text();
    out_.measured = measured_text();
  }

  // Returns the cotangents of the ranks' own backward: at the calls as they were observed, between
  // them by the chain rule from what the calls gave.
  Traced observed() {
    if (truth_.empty()) return {};
    const auto run = c_.machine.observe();
    if (!run || run->error) return {};
    const auto calls = calls_on_ranks(program_, *run);
    if (calls.empty()) return {};
    const std::vector<double> starts = run_weights();
    Traced all = traced(without_calls(program_, starts, calls, *run),
                        std::vector<double>(starts.size(), 1.0), c_.machine);
    all.weights = starts;
    return all;
  }

  void show_ranks_cotangents(const Traced& ranks) {
    if (ranks.empty()) return;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      ExplainedValue& v = out_.values[i];
      const auto seen =
          v.kind == Kind::kLoss ? scalars(ranks.weights) : of(ranks.cotangents, names_[i]);
      if (!v.cotangent.empty() && differs(v.cotangent, seen)) v.ranks_cotangent = seen;
    }
  }

  void show_probed() {
    for (const ProbedValue& v : probed_->values)
      if (!v.wrong_ranks.empty() && truth_.cotangents.contains(v.name) && v.taken_by.empty())
        value_named(v.name)->ranks_cotangent = v.ranks;
    for (const std::string& step : probed_->parting_steps(program_))
      if (!step.empty()) value_named(step)->mark = kPartsHere;
  }

  // Returns the finding of each blamed step, in the order of backward.
  std::vector<const Finding*> blamed() const {
    std::vector<const Finding*> all;
    for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step)
      for (const Finding& finding : c_.result.findings)
        if (finding.step == step->name && (all.empty() || all.back()->step != finding.step))
          all.push_back(&finding);
    return all;
  }

  void mark_blamed() {
    bool is_first = true;
    for (const Finding* finding : blamed()) {
      value_named(finding->step)->mark =
          is_first ? kPartsHere : "the backward of this step is wrong as well";
      is_first = false;
    }
  }

  std::string parting_text() const {
    const auto steps = blamed();
    if (!steps.empty())
      return fmt::format(
          "In the backward of step {}: what it gives to its operand is not what is right for the "
          "cotangents that arrive at it.",
          steps.front()->step);
    if (has_code(program_.steps)) return probed_ ? probed_text() : kNotKnown;
    const bool all_alike =
        std::all_of(out_.values.begin(), out_.values.end(),
                    [](const ExplainedValue& v) { return v.ranks_cotangent.empty(); });
    if (!all_alike)
      return "In no collective: every one gives its operand what is right for what arrives at it.";
    return "In no collective: every cotangent is that of the truth. What the ranks hold in the end "
           "is not, since it is not summed, joined or synchronised as J asks for; see below.";
  }

  std::string probed_text() const {
    std::vector<std::string> steps = probed_->parting_steps(program_);
    std::erase(steps, "");
    if (steps.size() == 1)
      return fmt::format(
          "In the backward of step {}: what arrives at it is right, and what it gives is not.",
          steps.front());
    if (!steps.empty())
      return fmt::format(
          "In the backward of one of the steps {}: what arrives at them is right, and what they "
          "give is not.",
          enumeration(steps));
    if (is_any_local_wrong()) return kNotKnown;
    return "In no step: what each rank has of the gradients is right. What the ranks hold in the "
           "end is not, since it is not summed, joined or synchronised as J asks for; see below.";
  }

  bool is_any_local_wrong() const {
    return std::ranges::any_of(c_.comparison->gradients, [&](const GradientComparison& g) {
      const auto input = std::ranges::find(program_.inputs, g.input, &Input::name);
      return !g.equal && input != program_.inputs.end() && input->is_local();
    });
  }

  std::string measured_text() const {
    std::string text;
    for (const Finding* finding : blamed())
      if (finding->measured)
        text +=
            fmt::format("{}step {} ({}) {}; right is {}.", text.empty() ? "" : " ", finding->step,
                        finding->collective, short_formula(finding->measured->formula),
                        short_formula(finding->measured->right));
    return text;
  }

  const Conclusion& c_;
  const Program& program_;
  Traced truth_;
  std::optional<Probed> probed_;  // of programs that call code
  Explanation out_;
  std::vector<std::string> names_;  // of out_.values; "" is the loss
};

}  // namespace

Explanation explanation_of(const Conclusion& conclusion) { return Explainer(conclusion).run(); }

}  // namespace distgrad
