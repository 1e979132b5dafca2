#include "judge/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"
#include "judge/objective_truths.h"
#include "judge/phrases.h"
#include "judge/vacuous.h"

namespace distgrad {
namespace {

// A figure in the file is decimal text of the dtype's value. If it has too many digits to be meant
// exactly, it may be off by this many unit roundoffs.
constexpr double kFigureRoundings = 4;

std::string skip_reason(const DistributedRun& run) {
  for (const RankResult& rank : run.ranks)
    if (!rank.skipped.empty()) return rank.skipped;
  return "";
}

std::optional<RankError> error_of(const DistributedRun& run) {
  if (run.error) return run.error;
  for (const RankResult& rank : run.ranks)
    if (rank.error) return rank.error;
  return std::nullopt;
}

std::string undecided_text(const Simulation& simulation) {
  std::string text = "undecided: " + simulation.undecided.front();
  if (simulation.undecided.size() > 1)
    text += fmt::format(", and {} more", simulation.undecided.size() - 1);
  return text;
}

Verdict verdict_of(const Outcome& outcome) {
  if (outcome.run) {
    if (error_of(*outcome.run)) return Verdict::kError;
    if (!skip_reason(*outcome.run).empty()) return Verdict::kSkipped;
  }
  if (!outcome.comparison || outcome.comparison->equal()) return Verdict::kMatch;
  const bool undecided = outcome.simulation && !outcome.simulation->undecided.empty();
  return undecided || !outcome.dispute.empty() ? Verdict::kDisputed : Verdict::kMismatch;
}

// --- Whether the expectation holds: why not, or empty. ---

std::string findings_text(const CaseResult& result) {
  if (result.findings.empty()) return "none";
  std::vector<std::string> names;
  for (const Finding& f : result.findings) names.emplace_back(f.rule.text());
  return enumeration(names);
}

std::string verdict_failure(const CaseResult& result, const Expectation& expected) {
  if (result.verdict == expected.verdict) return "";
  std::string why =
      fmt::format("expected {}, got {}", name_of(expected.verdict), name_of(result.verdict));
  if (!result.findings.empty()) why += ": " + findings_text(result);
  if (result.verdict == Verdict::kMatch)
    why += "; if what was wrong has been mended, make the expectation \"match\"";
  return result.why.empty() ? why : why + " (" + result.why + ")";
}

std::string finding_failure(const CaseResult& result, const Expectation& expected) {
  if (expected.finding.empty()) return "";
  for (const Finding& f : result.findings)
    if (f.rule == expected.finding) return "";
  return fmt::format("expected the finding {}, found {}", expected.finding.text(),
                     findings_text(result));
}

std::string kind_of_step(const Program* program, const std::string& name) {
  if (!program) return "";
  for (const Step& step : program->steps)
    if (step.name == name && step.collective())
      return std::string(traits(step.collective()->kind).name);
  return "";
}

// Checks the collective of the expected finding, or of any if none is named; an error has its
// step's.
std::string collective_failure(const CaseResult& result, const Expectation& expected,
                               const Program* program) {
  if (expected.collective.empty()) return "";
  std::vector<std::string> blamed;
  for (const Finding& f : result.findings)
    if (!f.collective.empty() && (expected.finding.empty() || f.rule == expected.finding))
      blamed.push_back(f.collective);
  if (result.error) blamed.push_back(kind_of_step(program, result.error->step));
  if (std::find(blamed.begin(), blamed.end(), expected.collective) != blamed.end()) return "";
  std::erase(blamed, "");
  return fmt::format("expected the collective {} to be blamed, blamed is {}", expected.collective,
                     blamed.empty() ? "none" : enumeration(blamed));
}

std::string message_failure(const CaseResult& result, const Expectation& expected) {
  if (expected.message.empty()) return "";
  const std::string& message = result.error ? result.error->message : result.why;
  if (message.find(expected.message) != std::string::npos) return "";
  return fmt::format("expected a message with \"{}\", got \"{}\"", expected.message, message);
}

double figure_slack(double figure, DType dtype) {
  const DTypeTraits& t = traits(dtype);
  return has_few_bits(figure, t.significand_bits)
             ? 0
             : kFigureRoundings * unit_roundoff(dtype) * std::abs(figure);
}

// Returns the case's largest relative bound, for values that have no bound of their own.
double relative_bound(const Simulation* simulation, const std::string& input) {
  if (!simulation || simulation->gradients.empty()) return 0;
  double bound = 0, largest = 0;
  for (const Gradient& g : simulation->bounds)
    for (const auto& part : g.parts)
      if (g.input == input && part) bound = std::max(bound, largest_magnitude(part->values()));
  for (const Gradient& g : simulation->gradients[0])
    for (const auto& part : g.parts)
      if (g.input == input && part) largest = std::max(largest, largest_magnitude(part->values()));
  return largest > 0 ? std::min(bound / largest, 1.0 / 16) : 0;
}

bool is_pinned_value(const std::optional<Array>& observed, const std::optional<Array>& pinned,
                     DType dtype, double relative) {
  if (!observed || !pinned) return !observed && !pinned;
  const bool both_empty = observed->size() == 0 && pinned->size() == 0;  // [] has no inner shape
  if (observed->shape() != pinned->shape()) return both_empty;
  const double largest = largest_magnitude(pinned->values());
  for (std::int64_t i = 0; i < pinned->size(); ++i) {
    const double figure = (*pinned)[i];
    const double slack = figure_slack(figure, dtype) + relative * largest;
    if (!within((*observed)[i], figure, slack) &&
        !within((*observed)[i], rounded_to(dtype, figure), slack))
      return false;
  }
  return true;
}

std::string value_text(const std::optional<Array>& value) {
  return value ? array_phrase(*value) : "no gradient";
}

std::string gradients_failure(const CaseResult& result, const Expectation& expected,
                              const Simulation* simulation) {
  for (const auto& [input, pinned] : expected.gradients) {
    const auto found = std::find_if(result.gradients.begin(), result.gradients.end(),
                                    [&](const auto& g) { return g.input == input; });
    if (found == result.gradients.end())
      return fmt::format("expected gradients of {}, there are none", input);
    const auto& observed = found->observed_by_rank;
    if (observed.size() != pinned.size())
      return fmt::format("expected gradients of {} on {} ranks, there are {}", input, pinned.size(),
                         observed.size());
    for (std::size_t r = 0; r < pinned.size(); ++r)
      if (!is_pinned_value(observed[r], pinned[r], result.which.dtype,
                           relative_bound(simulation, input)))
        return fmt::format("expected the gradient of {} on rank {} to be {}, it is {}", input, r,
                           value_text(pinned[r]), value_text(observed[r]));
  }
  return "";
}

std::string failure(const CaseResult& result, const Outcome& outcome) {
  const Expectation& expected = result.which.expected;
  std::string why = verdict_failure(result, expected);
  if (!why.empty()) return why;
  for (const std::string& part :
       {finding_failure(result, expected), collective_failure(result, expected, outcome.program),
        message_failure(result, expected)})
    if (!part.empty()) why += (why.empty() ? "" : "; ") + part;
  if (!result.which.world_size_overridden) {
    const std::string figures = gradients_failure(result, expected, outcome.simulation);
    if (!figures.empty()) why += (why.empty() ? "" : "; ") + figures;
  }
  return why;
}

void note_overrides(const Outcome& outcome, CaseResult& result) {
  const Case& which = result.which;
  if (which.objective_overridden) {
    result.notes.push_back(
        "the objective was overridden: the file's truth and expectations do not apply");
    return;
  }
  if (!which.world_size_overridden) return;
  const bool figures =
      !which.expected.gradients.empty() ||
      (outcome.program &&
       std::any_of(outcome.program->truth.begin(), outcome.program->truth.end(),
                   [](const auto& t) { return !std::holds_alternative<Expression>(t.value); }));
  if (figures)
    result.notes.push_back(
        "the world size was overridden: figures pinned for another are not checked");
}

void decide_expected(const Outcome& outcome, bool strict, CaseResult& result) {
  // Without ranks a subject's expectations mean nothing, unless they are about the simulation.
  const FindingName finding = result.which.expected.finding;
  const bool of_simulation = finding == "truth" || finding == "program";
  if (outcome.comparison && !outcome.run && !of_simulation) result.which.expected = {};
  const bool unjudged = result.verdict == Verdict::kSkipped || result.verdict == Verdict::kDisputed;
  if (unjudged && result.verdict != result.which.expected.verdict && !strict)
    return;  // as_expected stays absent
  std::string why = failure(result, outcome);
  if (strict && why.empty() && is_vacuous(result)) why = "vacuous: the match shows nothing";
  result.as_expected = why.empty();
  if (why.empty()) return;
  result.broken = result.verdict == Verdict::kError;
  // Why a case is skipped or disputed says more than that it should not have been.
  if (!unjudged) result.why = why;
}

void copy_run(const DistributedRun& run, CaseResult& result) {
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    for (const std::string& text : run.ranks[r].warnings)
      result.warnings.push_back({static_cast<int>(r), text});
    for (const std::string& text : run.ranks[r].composed)
      if (std::find(result.composed.begin(), result.composed.end(), text) == result.composed.end())
        result.composed.push_back(text);
  }
  result.output = run.output;
}

}  // namespace

bool is_complete(const DistributedRun& run) { return !error_of(run) && skip_reason(run).empty(); }

CaseResult judge(const Case& which, Outcome outcome, bool strict) {
  CaseResult result;
  result.which = which;
  if (which.objective_overridden) result.which.expected = {};
  result.elapsed_s = outcome.elapsed_s;
  result.verdict = verdict_of(outcome);
  if (outcome.simulation) {
    result.simulated_losses = outcome.simulation->losses;
    result.bound_notes = outcome.simulation->bound_notes;
    if (!outcome.simulation->forward_only.empty())
      result.notes.push_back("only the forward values are judged: " +
                             outcome.simulation->forward_only);
  }
  if (outcome.run) {
    copy_run(*outcome.run, result);
    result.error = error_of(*outcome.run);
    if (result.verdict == Verdict::kSkipped) result.why = skip_reason(*outcome.run);
  }
  if (outcome.comparison) {
    result.gradients = outcome.comparison->gradients;
    result.distributed_losses = outcome.comparison->distributed_losses;
  }
  if (result.verdict == Verdict::kDisputed)
    result.why = outcome.dispute.empty() ? undecided_text(*outcome.simulation) : outcome.dispute;
  if (result.verdict == Verdict::kMatch || result.verdict == Verdict::kMismatch)
    result.findings = std::move(outcome.findings);
  if (result.verdict == Verdict::kMatch && outcome.comparison && outcome.simulation &&
      outcome.program)
    if (auto vacuous = vacuous_match(*outcome.program, *outcome.simulation, *outcome.comparison))
      result.findings.push_back(std::move(*vacuous));
  note_overrides(outcome, result);
  decide_expected(outcome, strict, result);
  return result;
}

CaseResult skipped(const Case& which, std::string why, bool strict) {
  CaseResult result;
  result.which = which;
  result.verdict = Verdict::kSkipped;
  result.why = std::move(why);
  decide_expected({}, strict, result);
  return result;
}

CaseResult failed(const Case& which, RankError error, double elapsed_s) {
  CaseResult result;
  result.which = which;
  result.verdict = Verdict::kError;
  result.error = std::move(error);
  result.elapsed_s = elapsed_s;
  decide_expected({}, false, result);
  return result;
}

}  // namespace distgrad
