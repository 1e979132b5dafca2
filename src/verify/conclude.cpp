#include "verify/conclude.h"

#include <string>
#include <utility>
#include <vector>

#include "judge/compare.h"
#include "judge/diagnose.h"
#include "judge/dispute.h"
#include "judge/objective_truths.h"
#include "judge/unexplained.h"
#include "judge/verdict.h"
#include "scenario/cases.h"

namespace distgrad {
namespace {

class Concluding {
 public:
  Concluding(const Case& c, SharedTruth& truth, const DistributedRun* run,
             const VerifyOptions& options, CaseWorkers& workers, VerifyListener& listener)
      : case_(c),
        truth_(truth),
        run_(run),
        options_(options),
        workers_(workers),
        listener_(listener) {}

  CaseResult result() {
    workers_.take_lost();  // drops another case's
    const SimulationRun& simulated = truth_.run;
    if (simulated.error) return failed(case_, *simulated.error, simulated.elapsed_s);
    Outcome outcome;
    const SimulateRequest* asked = &truth_.asked;
    outcome.simulation = &simulated.simulation;
    outcome.program = &truth_.asked.program;
    outcome.run = run_;
    outcome.elapsed_s = run_ ? run_->elapsed_s : simulated.elapsed_s;
    CaseComparison comparison;
    if (!run_ || is_complete(*run_)) {
      comparison = compared_with_all_that_is_needed();
      if (!run_) listener_.on_truth(case_, truth_.asked.program, simulated.simulation, comparison);
      outcome.comparison = &comparison;
      const bool runs_code = run_ && calls_code(case_);
      if (runs_code && bounds_may_hide_mistakes(case_, truth_.asked, truth_.run.simulation))
        if (std::optional<CaseResult> wrong = wrong_in_float64()) return *std::move(wrong);
      if (runs_code && !comparison.equal()) {
        outcome.dispute = why_disputed(comparison);
        if (outcome.dispute.empty()) {
          asked = &intended().asked;
          outcome.simulation = &intended().simulation;
          comparison = compare(case_, *asked, *outcome.simulation, run_);
        }
      }
      if (outcome.dispute.empty())
        outcome.findings = findings(*asked, *outcome.simulation, comparison);
    }
    const CaseComparison* compared = outcome.comparison;
    const Simulation& simulation = *outcome.simulation;
    CaseResult result = judge(case_, std::move(outcome), options_.strict);
    CaseMachine machine(workers_, case_, asked->program);
    listener_.on_conclusion({case_, *asked, simulation, run_, compared, machine, result});
    return result;
  }

 private:
  CaseComparison compared(OtherObjectives objectives) const {
    return compare(case_, truth_.asked, truth_.run.simulation, run_, objectives);
  }

  CaseComparison compared_with_all_that_is_needed() {
    const bool all = !run_ || options_.every_objective || !is_expected_to_match(case_);
    const OtherObjectives at_first = all ? OtherObjectives::kCompared : OtherObjectives::kLeftOut;
    CaseComparison comparison = compared(at_first);
    if (!comparison.equal() && ask_for_bounds()) comparison = compared(at_first);
    if (!all && comparison.equal()) return comparison;
    const bool is_reported = !comparison.gradients_equal() || !is_expected_to_match(case_);
    const bool knows_more = run_ && is_reported && ask_for_every_rank();
    if (knows_more || !all) comparison = compared(OtherObjectives::kCompared);
    return comparison;
  }

  // Asks for the bounds of a large program's truth. Returns false if they are known.
  bool ask_for_bounds() {
    if (!truth_.run.simulation.bounds.empty() || !truth_.asked.bounds_may_wait || calls_code(case_))
      return false;
    SimulateRequest request = truth_.asked;
    request.bounds_may_wait = false;
    return ask_again(std::move(request));
  }

  // Asks for each rank's loss by itself, so that a diagnosis knows every objective. Returns false
  // if that is known.
  bool ask_for_every_rank() {
    auto weights = weights_to_ask(truth_.asked.program, case_.objective, Detail::kEveryRank);
    if (weights.size() <= truth_.asked.weights.size()) return false;
    SimulateRequest request = truth_.asked;
    request.weights = std::move(weights);
    return ask_again(std::move(request));
  }

  bool ask_again(SimulateRequest request) {
    SimulationRun run = workers_.simulate_now(request, case_);
    if (run.error || run.simulation.invalid) return false;  // the few rows do, too
    truth_.asked = std::move(request);
    truth_.run = std::move(run);
    replace_truth(truth_, case_, options_);  // it could before, so it can now
    return true;
  }

  // Says why a program that calls code is not blamed although its gradients differ from the truth,
  // or returns "".
  std::string why_disputed(const CaseComparison& comparison) {
    std::string why = dispute(case_, truth_.asked, truth_.run.simulation, *run_, comparison);
    if (!why.empty() || !could_be_rounding(case_, truth_.run.simulation, comparison)) return why;
    const Simulation& simulation = truth_.run.simulation;
    const bool is_right = simulation.is_right_in_float64 || (widened() && wide_->is_right);
    return is_right ? dispute_about_rounding(case_, simulation, comparison) : "";
  }

  // Holds the same program, run in float64 whatever its own dtypes are.
  struct Widened {
    Case which;
    SharedTruth truth;
    DistributedRun run;
    bool is_right = false;
  };

  // Returns false if the program cannot be run so.
  bool widened() {
    if (!is_tried_) wide_ = run_widened();
    is_tried_ = true;
    return wide_.has_value();
  }

  std::optional<Widened> run_widened() {
    Widened wide{case_, {}, {}, false};
    wide.which.dtype = DType::kFloat64;
    wide.truth.asked = truth_.asked;
    wide.truth.asked.program.dtype = wide.which.dtype;
    wide.truth.asked.program.is_widened = true;
    wide.truth.run = workers_.simulate_now(wide.truth.asked, wide.which);
    const Simulation& simulation = wide.truth.run.simulation;
    if (wide.truth.run.error || simulation.invalid || !simulation.undecided.empty()) return {};
    wide.run = workers_.run_now(run_request(wide.which, wide.truth.asked.program), wide.which);
    if (!is_complete(wide.run)) return {};
    wide.is_right = compare(wide.which, wide.truth.asked, simulation, &wide.run).equal();
    return wide;
  }

  // Judges the case in float64, if it is wrong there.
  std::optional<CaseResult> wrong_in_float64() {
    if (!widened() || wide_->is_right) return {};
    CaseResult result =
        Concluding(wide_->which, wide_->truth, &wide_->run, options_, workers_, listener_).result();
    result.which.dtype = case_.dtype;
    result.notes.push_back(
        "these are figures of a run in float64: in the case's own dtypes roundings may hide the "
        "mistake");
    return result;
  }

  const IntendedTruth& intended() {
    if (!truth_.intended) truth_.intended = as_intended(truth_.asked, truth_.run.simulation);
    return *truth_.intended;
  }

  std::vector<Finding> findings(const SimulateRequest& asked, const Simulation& simulation,
                                const CaseComparison& comparison) {
    CaseMachine machine(workers_, case_, asked.program);
    if (!options_.simulate_only) {
      const Evidence evidence(case_, asked, simulation, comparison);
      std::vector<Finding> findings = diagnose(evidence, &machine);
      const std::string lost = workers_.take_lost();
      if (lost.empty() || comparison.gradients_equal()) return findings;
      findings = diagnose(evidence, nullptr);
      findings.push_back(unexplained_finding(
          evidence,
          "The diagnosis was broken off. While the case was looked at once more, twice: " + lost));
      return findings;
    }
    CaseComparison guards = comparison;  // no gradients were observed that could be explained
    guards.gradients.clear();
    return diagnose({case_, asked, simulation, guards}, nullptr);
  }

  const Case& case_;
  SharedTruth& truth_;
  const DistributedRun* run_;
  const VerifyOptions& options_;
  CaseWorkers& workers_;
  VerifyListener& listener_;
  std::optional<Widened> wide_;
  bool is_tried_ = false;  // wide_
};

}  // namespace

CaseResult conclude(const Case& c, SharedTruth& truth, const DistributedRun* run,
                    const VerifyOptions& options, CaseWorkers& workers, VerifyListener& listener) {
  return Concluding(c, truth, run, options, workers, listener).result();
}

std::string replace_truth(SharedTruth& truth, const Case& c, const VerifyOptions& options) {
  if (!options.replace_truth || truth.run.error || calls_code(c)) return "";
  return options.replace_truth(c, truth.asked.program, truth.run.simulation);
}

}  // namespace distgrad
