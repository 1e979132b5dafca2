#include "judge/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "judge/arithmetic_findings.h"
#include "judge/call_findings.h"
#include "judge/chain.h"
#include "judge/closeness.h"
#include "judge/forward_findings.h"
#include "judge/missing_share.h"
#include "judge/phrases.h"
#include "judge/probes.h"
#include "judge/scaling.h"
#include "judge/sync_findings.h"
#include "judge/unexplained.h"

namespace distgrad {
namespace {

bool is_known(const std::vector<Finding>& findings, const Finding& finding) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.rule == finding.rule && f.step == finding.step &&
           (!f.step.empty() || f.text == finding.text);
  });
}

void add(std::vector<Finding>& findings, std::optional<Finding> finding) {
  if (finding && !is_known(findings, *finding)) findings.push_back(std::move(*finding));
}

void append(std::vector<Finding>& findings, std::vector<Finding> more) {
  for (Finding& finding : more) add(findings, std::move(finding));
}

bool names(const std::vector<Finding>& findings, FindingName rule) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& f) { return f.rule == rule; });
}

// --- The observed run ---

bool is_whole(const DistributedRun& run, std::size_t inputs) {
  return !run.error && std::all_of(run.ranks.begin(), run.ranks.end(), [&](const RankResult& rank) {
    return !rank.error && rank.skipped.empty() && rank.shares.size() == inputs &&
           rank.gradients.size() == inputs;
  });
}

// Returns the ranks whose gradients changed in the second run by more than rounding may do.
std::vector<int> ranks_that_changed(const Evidence& evidence, const DistributedRun& again) {
  const std::vector<double> all = post_sync_divisors(evidence.program(), evidence.which().objective,
                                                     evidence.divides_replicated());
  std::set<int> ranks;
  for (std::size_t i = 0, p = 0; i < evidence.inputs().size(); ++i, ++p) {
    while (!evidence.program().inputs[p].requires_grad) ++p;
    const GradientComparison& g = evidence.comparison().gradients[i];
    const Tolerance& tolerance = evidence.tolerance();
    for (std::size_t r = 0; r < again.ranks.size(); ++r) {
      const auto& seen = again.ranks[r].gradients[i];
      const auto& first = g.observed_by_rank[r];
      if (!seen || !first) {
        if (seen.has_value() != first.has_value()) ranks.insert(static_cast<int>(r));
        continue;
      }
      double bound = 2 * evidence.bound_between_runs(i);
      if (tolerance.kind == Tolerance::Kind::kExplicit)
        bound = std::max(
            bound, 2 * (tolerance.atol + tolerance.rtol * largest_magnitude(first->values())));
      const GradientByRank scaled = divided({*seen}, all[p]);
      if (seen->shape() != first->shape() ||
          !difference(scaled[0]->values(), first->values(), [&](std::size_t) {
             return bound;
           }).equal)
        ranks.insert(static_cast<int>(r));
    }
  }
  return {ranks.begin(), ranks.end()};
}

Finding nondeterministic(const Evidence& evidence, std::vector<int> ranks) {
  std::string text = fmt::format(
      "A second run of the same case gives other gradients {}. Look for memory that is read before "
      "it is written or while a collective still writes it (a wait() that is missing), for what is "
      "kept from one call to the next (a buffer, a counter), for random numbers, and for an order "
      "that is left to chance.",
      on_ranks(ranks, evidence.program().world_size));
  return {"nondeterministic", "", "", std::move(ranks), {}, std::move(text)};
}

// --- What is right by convention ---

bool has_invariant_input(const Program& program) {
  for (const Input& input : program.inputs)
    for (const AxisLayout& entry : input.layout)
      if (entry.layout.kind == Layout::Kind::kInvariant) return true;
  return false;
}

// Returns true under one loss that all ranks compute, and for values of which every rank holds a
// copy. Backwards that take each rank's cotangent for the whole, or that sum shares of it, are
// right there as well (Megatron's, say), so they are blamed only if nothing else is.
bool is_one_loss_along(const Evidence& evidence, const std::string& group) {
  const Objective& objective = evidence.which().objective;
  if (objective.kind == Objective::Kind::kReplicated || has_invariant_input(evidence.program()))
    return true;
  return std::any_of(objective.axes.begin(), objective.axes.end(), [&](const auto& axis) {
    return axis.first == group && axis.second == Objective::Axis::kReplicated;
  });
}

// Returns true if the measured x̄ is right when all ranks' cotangents are one value that stands for
// the whole loss, or if it gathers shares of one replicated operand.
bool is_right_for_one_loss(const Finding& finding) {
  if (finding.rule == "identity-backward" || finding.rule == "own-slice") return true;
  if (finding.collective == "copy") return finding.rule == "double-reduction";
  return finding.collective == "slice" && finding.rule == "wrong-slice" && finding.measured &&
         finding.measured->formula == "x̄_r[a] = ȳ_a";
}

// --- The stages ---

class Diagnosis {
 public:
  Diagnosis(const Evidence& evidence, Machine& machine)
      : evidence_(evidence), machine_(machine), scaling_(scaling_of(evidence)) {}

  std::vector<Finding> run() {
    observe();
    if (auto of_invariant = invariant_findings(machine_, evidence_, scaling_)) {
      findings_ = overwritten();
      if (findings_.empty()) findings_ = std::move(*of_invariant);
    } else if (observed_) {
      judge_calls();
      judge_between_and_missing();
      append(findings_, sync_findings(evidence_, *observed_, scaling_));
    } else {
      add_missing_gradients();
    }
    const bool is_localised = !findings_.empty();
    if (!is_localised && observed_)
      append(findings_, file_sync_findings(evidence_, *observed_, scaling_));
    add(findings_, objective_finding(evidence_, scaling_));
    append(findings_, unsynchronised_findings(evidence_));
    if (findings_.empty() && !by_convention_.empty())
      add(findings_, precision_finding(evidence_, scaling_));
    if (findings_.empty()) append(findings_, std::move(by_convention_));
    if (findings_.empty() && has_code(evidence_.program().steps)) explain_code();
    if (!names(findings_, "scaled")) add(findings_, scaled_finding(evidence_, scaling_));
    if (findings_.empty() && !evidence_.comparison().forward)
      findings_.push_back(has_code(evidence_.program().steps)
                              ? unexplained_code()
                              : unexplained_finding(evidence_, what_was_tried()));
    return std::move(findings_);
  }

 private:
  void observe() {
    observed_ = machine_.observe();
    if (observed_ && !is_whole(*observed_, evidence_.inputs().size())) observed_.reset();
    if (!observed_) return;
    calls_ = calls_on_ranks(evidence_.program(), *observed_);
    if (auto ranks = ranks_that_changed(evidence_, *observed_); !ranks.empty())
      changed_ = nondeterministic(evidence_, std::move(ranks));
  }

  void judge_calls() {
    for (std::size_t c = calls_.size(); c-- > 0;) {  // in the order of backward
      const CallOnRanks& call = calls_[c];
      const CallJudgement judgement = judged(machine_, evidence_.program(), call,
                                             evidence_.which().subject, evidence_.tolerance());
      if (judgement.wrong_ranks.empty()) continue;
      auto findings = call_findings(machine_, evidence_, call, judgement, calls_, scaling_);
      if (is_one_loss_along(evidence_, call.call().group) &&
          is_right_for_one_loss(findings.front()))
        append(by_convention_, std::move(findings));
      else
        append(findings_, std::move(findings));
    }
    if (changed_ && !names(findings_, "nondeterministic") && !names(findings_, "stale-or-aliased"))
      findings_.insert(findings_.begin(), *changed_);
  }

  // Skips this if a call whose backward gives None has been reported as such.
  void add_missing_gradients() {
    if (names(findings_, "no-gradient") || lacks_only_zeros(evidence_)) return;
    add(findings_, no_gradient_finding(evidence_, nullptr));
  }

  // A call that is cut off from the graph explains more than inputs without gradients do.
  void judge_between_and_missing() {
    std::vector<Finding> between;
    if (!evidence_.comparison().forward && knows_calls())
      between = chain_findings(machine_, evidence_, calls_, *observed_);
    if (!names(between, "no-gradient")) add_missing_gradients();
    append(findings_, std::move(between));
  }

  // Reports calls that wrote into a cotangent that others read. That was seen, so it counts more
  // than what arithmetic on the gradients fits.
  std::vector<Finding> overwritten() {
    const auto wrote = [](const CallOnRanks& call) {
      return std::ranges::any_of(call.cotangents_after,
                                 [](const auto& after) { return after.has_value(); });
    };
    if (evidence_.comparison().forward || !knows_calls() || !std::ranges::any_of(calls_, wrote))
      return {};
    std::vector<Finding> findings = chain_findings(machine_, evidence_, calls_, *observed_);
    std::erase_if(findings, [](const Finding& f) { return f.rule != "stale-or-aliased"; });
    return findings;
  }

  void explain_code() {
    add(findings_, stale_finding(evidence_));
    if (findings_.empty()) add(findings_, missing_share_finding(machine_, evidence_));
    if (!findings_.empty() || scaling_) return;
    if (auto rounded = precision_of_code(evidence_, scaling_)) {
      rounded->step = unexplained_code().step;
      findings_.push_back(std::move(*rounded));
    }
  }

  // Returns true if every call was reported. A call whose backward runs twice, as for the gradient
  // of a gradient, is not.
  bool knows_calls() const {
    const auto& steps = evidence_.program().steps;
    return static_cast<std::ptrdiff_t>(calls_.size()) ==
           std::count_if(steps.begin(), steps.end(), [](const Step& s) { return s.collective(); });
  }

  // Says, for programs that call code, where the backward parts from the truth, if measurable.
  Finding unexplained_code() const {
    std::vector<std::string> parting;
    const Program& program = evidence_.program();
    const Objective& objective = evidence_.which().objective;
    const auto run_weights = backward_weights(program, objective, evidence_.divides_replicated());
    if (const auto values =
            probed(machine_, program, ProbeDetail::kDirection,
                   backward_weights(program, objective, true), run_weights, evidence_.simulation()))
      parting = values->parting_steps(program);
    std::erase(parting, "");
    std::vector<std::string> looked_at;
    for (const Step& step : program.steps)
      if (parting.empty() ? step.code() != nullptr : std::ranges::count(parting, step.name) > 0)
        looked_at.push_back(fmt::format("{} (step {})",
                                        step.code() ? std::string_view(step.code()->code)
                                                    : traits(step.collective()->kind).name,
                                        step.name));
    const bool is_one = parting.size() == 1 && looked_at.size() == 1;
    Finding finding = unexplained_finding(
        evidence_,
        fmt::format("{}ook at the backward of {}: whether each collective in it has its adjoint.",
                    is_one ? "What arrives at step " + parting.front() +
                                 " is right, and what it gives is not: l"
                           : "L",
                    enumeration(looked_at)));
    if (is_one) finding.step = parting.front();
    return finding;
  }

  std::string what_was_tried() const {
    if (!observed_)
      return "The ranks' backward could not be observed in a second run, so where it parts from "
             "the truth is not known.";
    if (!knows_calls())
      return "What the backward of each single collective got and gave is not known.";
    return "Every collective gave its operand what is right for what arrived, and what lies "
           "between and behind them follows; what the program was started with does not give the "
           "truth.";
  }

  const Evidence& evidence_;
  Machine& machine_;
  const std::optional<Scaling> scaling_;
  std::optional<DistributedRun> observed_;
  std::vector<CallOnRanks> calls_;
  std::optional<Finding> changed_;      // from one run to the next
  std::vector<Finding> by_convention_;  // of calls that are right if there is only one loss
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> diagnose(const Evidence& evidence, Machine* machine) {
  std::vector<Finding> findings;
  const CaseComparison& comparison = evidence.comparison();
  if (!evidence.simulation().undecided.empty() && !comparison.equal()) return findings;
  add(findings, truth_finding(evidence));
  add(findings, program_finding(evidence));
  add(findings, forward_finding(evidence));
  if (comparison.gradients_equal()) {
    if (evidence.simulation().forward_only.empty())
      add(findings, no_gradient_finding(evidence, nullptr));
    return findings;
  }
  if (machine) append(findings, Diagnosis(evidence, *machine).run());
  // Gradients that are missing where the truth is zero are not why others are wrong.
  if (lacks_only_zeros(evidence)) add(findings, no_gradient_finding(evidence, nullptr));
  return findings;
}

}  // namespace distgrad
