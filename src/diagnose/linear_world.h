// A simulator small enough to be checked by eye, for tests: rank r holds x_r, computes a_r x_r,
// sends it through a chain of all_reduce steps (each scaled by the rank's factor), and its loss is
// b_r times the last value.
#pragma once

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "diagnose/evidence.h"
#include "diagnose/replayer.h"
#include "gradients/closeness.h"
#include "gradients/objective_truths.h"
#include "gradients/sample_programs.h"

namespace distgrad::sample {

class LinearWorld {
 public:
  struct Reduction {
    Step step;
    std::vector<double> factors;  // by rank, of the reduced value
  };

  LinearWorld(std::vector<double> before, std::vector<double> after)
      : before_(std::move(before)), after_(std::move(after)) {
    program.world_size = static_cast<int>(before_.size());
    program.inputs = {input("x", kLocal)};
    which.subject = "torch_nn";
  }

  void reduce(const std::string& name, ReduceOp op = ReduceOp::kSum,
              std::vector<double> factors = {}) {
    factors.resize(before_.size(), 1);
    const std::string operand = program.steps.empty() ? "x" : program.steps.back().name;
    program.steps.push_back(all_reduce(name, op));
    std::get<CollectiveCall>(program.steps.back().what).operand.text = operand;
    program.loss.text = name;
    reductions_.push_back({program.steps.back(), std::move(factors)});
  }

  Simulation simulate(const SimulateRequest& request) const {
    ++replays;
    Simulation s;
    std::vector<double> v = before_;  // x is 1 everywhere
    for (const Reduction& r : reductions_) {
      v = reduced(r.step, v);
      s.steps.push_back({r.step.name, {}, {}});
      for (const double y : v) s.steps.back().by_rank.push_back(Array::scalar(y));
      for (std::size_t k = 0; k < v.size(); ++k) v[k] *= r.factors[k];
    }
    for (std::size_t k = 0; k < v.size(); ++k) s.losses.push_back(v[k] * after_[k]);
    s.loss_bounds.assign(v.size(), 0);
    for (const std::vector<double>& weights : request.weights)
      s.gradients.push_back({gradient(backward(weights, request.rules), request.leaves_by_rank)});
    s.bounds = {gradient(std::vector<double>(v.size(), bound_in(request.program.dtype)),
                         request.leaves_by_rank)};
    s.exact = bound == 0;
    return s;
  }

  // What ranks with these rules hold: after the sync.
  GradientByRank held_with(const Hypothesis& rules) const {
    const auto weights = backward_weights(program, which.objective, divides_replicated(which, program));
    return synchronised(program, program.inputs[0], scalars(backward(weights, rules)));
  }

  // The case in which the ranks hold these gradients; valid until the next call.
  const Evidence& observed(const GradientByRank& held) {
    which.scenario = &scenario;
    asked_.program = program;
    asked_.weights = weights_to_ask(program, which.objective);
    simulation_ = simulate(asked_);
    run_ = {};
    for (std::size_t r = 0; r < before_.size(); ++r) {
      RankResult rank;
      rank.loss = simulation_.losses[r];
      rank.gradients = {held[r]};
      for (const StepValue& step : simulation_.steps) rank.steps.push_back(step.by_rank[r]);
      run_.ranks.push_back(std::move(rank));
    }
    comparison_ = compare(which, asked_, simulation_, &run_);
    evidence_.emplace(which, asked_, simulation_, comparison_);
    replays = 0;
    return *evidence_;
  }

  Replay replay() const {
    return [this](const SimulateRequest& request) { return simulate(request); };
  }

  CaseComparison& comparison() { return comparison_; }
  Simulation& simulation() { return simulation_; }

  Program program;
  Case which;
  Scenario scenario;
  double bound = 0;         // of every gradient
  mutable int replays = 0;  // since observed()

 private:
  static std::vector<double> reduced(const Step& step, const std::vector<double>& v) {
    double sum = std::accumulate(v.begin(), v.end(), 0.0);
    if (step.collective()->op == ReduceOp::kAvg) sum /= static_cast<double>(v.size());
    return std::vector<double>(v.size(), sum);
  }

  static std::vector<double> with_rule(const Step& step, const std::string& rule,
                                       const std::vector<double>& g) {
    const double n = static_cast<double>(g.size());
    const bool avg = step.collective()->op == ReduceOp::kAvg;
    const double sum = std::accumulate(g.begin(), g.end(), 0.0);
    std::map<std::string, double> to_all = {{"", avg ? sum / n : sum},
                                            {"same_op", avg ? sum / n : sum},
                                            {"forgotten_op", sum},
                                            {"sum_to_all", sum},
                                            {"divided", (avg ? sum / n : sum) / n},
                                            {"multiplied", (avg ? sum / n : sum) * n},
                                            {"none", 0}};
    if (rule == "identity") return g;
    // All else changes nothing in a world of contiguous scalars that all ranks share.
    return std::vector<double>(g.size(), to_all.contains(rule) ? to_all.at(rule) : to_all.at(""));
  }

  // Rounding in a narrower dtype than the program's, of values up to some thousands.
  double bound_in(DType dtype) const {
    return dtype == program.dtype ? bound : 1e4 * unit_roundoff(dtype);
  }

  std::vector<double> backward(const std::vector<double>& weights, const Hypothesis& rules) const {
    std::vector<double> g(weights.size());
    for (std::size_t r = 0; r < g.size(); ++r) g[r] = weights[r] * after_[r];
    for (auto it = reductions_.rbegin(); it != reductions_.rend(); ++it) {
      for (std::size_t r = 0; r < g.size(); ++r) g[r] *= it->factors[r];
      std::string rule;
      for (const RuleChoice& choice : rules)
        if (choice.step == it->step.name) rule = choice.rule;
      g = with_rule(it->step, rule, g);
    }
    for (std::size_t r = 0; r < g.size(); ++r) g[r] *= before_[r];
    return g;
  }

  Gradient gradient(const std::vector<double>& by_rank, bool leaves_by_rank) const {
    if (leaves_by_rank || program.inputs[0].is_local())
      return {.input = "x", .parts = scalars(by_rank)};
    return {.input = "x", .parts = scalars({std::accumulate(by_rank.begin(), by_rank.end(), 0.0)})};
  }

  std::vector<double> before_, after_;
  std::vector<Reduction> reductions_;
  SimulateRequest asked_;
  Simulation simulation_;
  DistributedRun run_;
  CaseComparison comparison_;
  std::optional<Evidence> evidence_;
};

}  // namespace distgrad::sample
