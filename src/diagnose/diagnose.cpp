#include "diagnose/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/forward_findings.h"
#include "diagnose/guards.h"
#include "diagnose/leftovers.h"
#include "diagnose/phrases.h"
#include "diagnose/rerun.h"
#include "diagnose/rewriting.h"
#include "diagnose/rule_texts.h"
#include "diagnose/scaling.h"
#include "diagnose/search.h"
#include "diagnose/sync_findings.h"
#include "diagnose/unexplained.h"

namespace distgrad {
namespace {

constexpr int kLargestWorldForShares = 8;

const Step* step_named(const Evidence& evidence, const std::string& name) {
  for (const Step* step : evidence.collectives())
    if (step->name == name) return step;
  return nullptr;
}

std::string finding_of_rule(std::string_view rule) {
  if (const auto rewriting = rewriting_named(rule)) return std::string(finding_of(rewriting->kind));
  for (const BackwardRuleRow& row : backward_rules())
    if (row.name == rule) return std::string(row.finding);
  return "";
}

// The steps of a hypothesis that go by one rule and are of one kind: told in one finding.
struct Blame {
  std::string rule;
  CollectiveKind kind{};
  std::vector<std::string> steps;
};

std::vector<Blame> blames_of(const Evidence& evidence, const Hypothesis& hypothesis) {
  std::vector<Blame> blames;
  for (const RuleChoice& choice : of_backward(hypothesis)) {
    const CollectiveKind kind = step_named(evidence, choice.step)->collective()->kind;
    const auto same = std::find_if(blames.begin(), blames.end(), [&](const Blame& b) {
      return b.rule == choice.rule && b.kind == kind;
    });
    if (same == blames.end()) {
      blames.push_back({choice.rule, kind, {choice.step}});
    } else {
      same->steps.push_back(choice.step);
    }
  }
  return blames;
}

// What happened and what to do, of a rule as of a rewriting. The texts of a rewriting are made up.
struct Words {
  std::string happened, right_if, remedy;
};

std::string right_if(const Evidence& evidence, const RuleText& text) {
  if (text.right_if.empty()) return "";
  const std::vector<std::string> satisfied = satisfied_objectives(evidence);
  const bool named =
      std::find(satisfied.begin(), satisfied.end(), text.right_objective) != satisfied.end();
  return fmt::format(" Right if {}{}.", text.right_if,
                     named ? fmt::format(" (objective \"{}\")", text.right_objective) : "");
}

Words words_for(const Evidence& evidence, const std::string& rule) {
  if (const auto rewriting = rewriting_named(rule))
    return {happened(*rewriting), "", std::string(remedy_of(rewriting->kind))};
  const RuleText text = text_of_rule(rule);
  return {std::string(text.happened), right_if(evidence, text), std::string(text.remedy)};
}

Finding finding_for(const Evidence& evidence, const Blame& blame,
                    const std::optional<Scaling>& scaling) {
  const Words words = words_for(evidence, blame.rule);
  Finding finding;
  finding.rule = finding_of_rule(blame.rule);
  // Zeros where a path is cut are no missing gradient, but what the path would have brought is.
  if (blame.rule == "none") finding.rule = "missing-reduction";
  finding.collective = std::string(traits(blame.kind).name);
  finding.step = blame.steps.front();
  finding.ranks = evidence.differing_ranks();
  const auto rewriting = rewriting_named(blame.rule);
  if (rewriting && rewriting->kind == Rewriting::Kind::kWithout)
    finding.ranks = {rewriting->number};
  if (scaling) finding.factor = scaling->common;
  const std::string several =
      blame.steps.size() > 1 ? " (steps " + enumeration(blame.steps) + ")" : "";
  finding.text = fmt::format(
      "{}: the backward of {}{} {}{}{}{}", how_they_differ(evidence, scaling), finding.collective,
      several, words.happened, words.right_if, words.remedy.empty() ? "" : " ", words.remedy);
  return finding;
}

// Every rank gets the same sum back, so that summing it again is multiplying by the size.
bool sums_to_all(const CollectiveCall& call) {
  return traits(call.kind).takes_op && call.op != ReduceOp::kProduct && call.op != ReduceOp::kMin &&
         call.op != ReduceOp::kMax;
}

bool is_known(const std::vector<Finding>& findings, const Finding& finding) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.rule == finding.rule && f.step == finding.step;
  });
}

void add(std::vector<Finding>& findings, std::optional<Finding> finding) {
  if (finding && !is_known(findings, *finding)) findings.push_back(std::move(*finding));
}

// Those on inputs have no step: the text says of which.
void add_each_text(std::vector<Finding>& findings, std::vector<Finding> more) {
  for (Finding& finding : more)
    if (std::none_of(findings.begin(), findings.end(),
                     [&](const Finding& f) { return f.text == finding.text; }))
      findings.push_back(std::move(finding));
}

bool names(const std::vector<Finding>& findings, std::string_view rule) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& f) { return f.rule == rule; });
}

// That the adjoint was scaled by a size says least of what happened.
void put_scaled_last(std::vector<Finding>& findings) {
  std::stable_partition(findings.begin(), findings.end(),
                        [](const Finding& f) { return f.rule != "scaled"; });
}

std::vector<Finding> rule_findings(const Evidence& evidence, const std::vector<Hypothesis>& found,
                                   const std::optional<Scaling>& scaling) {
  std::vector<Finding> findings;
  for (const Hypothesis& hypothesis : found)
    for (const Blame& blame : blames_of(evidence, hypothesis)) {
      const Finding finding = finding_for(evidence, blame, scaling);
      add(findings, finding);
      if (blame.rule == "multiplied" &&
          sums_to_all(*step_named(evidence, finding.step)->collective())) {
        Finding twice = finding;
        twice.rule = "double-reduction";
        add(findings, std::move(twice));
      }
    }
  for (const Hypothesis& hypothesis : found)
    add_each_text(findings, sync_findings(evidence, hypothesis, scaling));
  put_scaled_last(findings);
  if (found.size() > 1 && findings.size() > 1)
    findings.front().text +=
        " Others lead to the same gradients here: `distgrad explain` shows data that would tell "
        "them "
        "apart.";
  return findings;
}

void add_to(std::vector<GradientByRank>& sum, const std::vector<GradientByRank>& terms) {
  for (std::size_t i = 0; i < sum.size(); ++i)
    for (std::size_t r = 0; r < sum[i].size(); ++r) {
      if (!terms[i][r]) continue;
      std::vector<double> values(terms[i][r]->values().begin(), terms[i][r]->values().end());
      if (sum[i][r])
        for (std::size_t e = 0; e < values.size(); ++e) values[e] += sum[i][r]->values()[e];
      sum[i][r] = Array(terms[i][r]->shape(), std::move(values));
    }
}

// Only what each rank's own loss contributes is there, or one rank's loss contributes nothing.
std::optional<Finding> missing_share(const Evidence& evidence, const Replayer& replayer) {
  const int n = evidence.program().world_size;
  if (n < 2 || n > kLargestWorldForShares || evidence.inputs().empty()) return std::nullopt;
  const auto shares = replayer.shares();
  if (static_cast<int>(shares.size()) != n) return std::nullopt;
  Finding finding{.rule = "missing-reduction",
                  .collective = "",
                  .step = "",
                  .ranks = evidence.differing_ranks(),
                  .factor = {},
                  .text = ""};
  std::vector<GradientByRank> own = shares[0];
  for (GradientByRank& by_rank : own)
    for (std::size_t r = 0; r < by_rank.size(); ++r)
      by_rank[r] = shares[r][static_cast<std::size_t>(&by_rank - own.data())][r];
  if (replayer.are_observed(own)) {
    finding.text =
        "Each rank's gradient holds only what its own loss contributes; what the other ranks' "
        "losses contribute through the collectives is missing. Sum the cotangents over the ranks "
        "in backward.";
    return finding;
  }
  for (int without = 0; without < n; ++without) {
    std::vector<GradientByRank> others(own.size(), GradientByRank(static_cast<std::size_t>(n)));
    for (int rank = 0; rank < n; ++rank)
      if (rank != without) add_to(others, shares[static_cast<std::size_t>(rank)]);
    if (!replayer.are_observed(others)) continue;
    finding.ranks = {without};
    finding.text = fmt::format(
        "What the loss of rank {} contributes is missing from every gradient: its cotangent was "
        "dropped or detached before a sum.",
        without);
    return finding;
  }
  return std::nullopt;
}

// What no collective's rule explains.
std::vector<Finding> other_findings(const Evidence& evidence, const Replayer& replayer,
                                    bool is_scaled) {
  std::vector<Finding> findings;
  add(findings, stale_finding(evidence));
  if (!findings.empty()) return findings;
  add(findings, leftovers_finding(evidence, replayer));
  add(findings, wrong_slice_finding(evidence));
  if (!replayer.is_adjoint()) add(findings, missing_share(evidence, replayer));
  if (is_scaled) return findings;  // no rounding is the same for all
  add(findings,
      precision_finding(evidence, [&](DType dtype) { return replayer.is_right_in(dtype); }));
  return findings;
}

void append(std::vector<Finding>& findings, std::vector<Finding> more) {
  for (Finding& finding : more) add(findings, std::move(finding));
}

// Whether the blame of some hypothesis is that one step gave no gradient: which.
const Step* step_without_backward(const Evidence& evidence, const std::vector<Hypothesis>& found) {
  for (const Hypothesis& hypothesis : found)
    if (hypothesis.size() == 1 && hypothesis[0].rule == "none")
      return step_named(evidence, hypothesis[0].step);
  return nullptr;
}

// What only another run shows, asked where no simulation explains the first one.
void explain_by_rerun(const Evidence& evidence, const Replayer& replayer, const Rerun& rerun,
                      std::vector<Finding>& findings) {
  if (!rerun) return;
  add(findings, nondeterministic_finding(evidence, replayer, rerun));
  if (findings.empty()) add(findings, memory_finding(evidence, replayer, rerun));
}

// Nothing is known but a number that is no size of anything here, which may be another next time,
// or a zero, as memory that was cleared would leave.
bool is_bare_factor(const Evidence& evidence, const std::vector<Finding>& findings,
                    const std::optional<Scaling>& scaling) {
  if (findings.size() != 1 || findings[0].rule != "scaled" || !findings[0].step.empty())
    return false;
  return scaling && scaling->common &&
         meaning_of_factor(evidence.program(), *scaling->common).empty();
}

void explain_gradients(const Evidence& evidence, const Replay& replay, const Rerun& rerun,
                       std::vector<Finding>& findings) {
  const std::optional<Scaling> scaling = scaling_of(evidence);
  const Replayer replayer(evidence, replay);
  // Where the adjoint everywhere gives what the ranks hold, no backward is to blame: the objective
  // is another, or what happens after backward.
  const bool is_adjoint = replayer.is_adjoint();
  Explanations explained = is_adjoint ? Explanations() : explanations(evidence, replayer);
  std::vector<Hypothesis>& found = explained.found;
  const bool is_harmless = lacks_only_zeros(evidence);
  const auto missing = is_harmless
                           ? std::nullopt
                           : no_gradient_finding(evidence, step_without_backward(evidence, found));
  add(findings, missing);
  if (missing)
    std::erase_if(found, [](const Hypothesis& h) {
      return std::any_of(h.begin(), h.end(), [](const RuleChoice& c) { return c.rule == "none"; });
    });
  add_each_text(findings, rule_findings(evidence, found, scaling));
  const auto of_file =
      is_adjoint ? file_sync_findings(evidence, replayer, scaling) : std::vector<Finding>();
  add_each_text(findings, of_file);
  add(findings, objective_finding(evidence, scaling));
  append(findings, unsynchronised_findings(evidence));
  if (found.empty() && of_file.empty() && !missing && !names(findings, "objective") &&
      !names(findings, "missing-reduction"))
    append(findings, other_findings(evidence, replayer, scaling.has_value()));
  if (!names(findings, "scaled")) add(findings, scaled_finding(evidence, scaling));
  if (!evidence.comparison().forward && is_bare_factor(evidence, findings, scaling)) {
    std::vector<Finding> by_rerun;
    explain_by_rerun(evidence, replayer, rerun, by_rerun);
    if (!by_rerun.empty()) findings = std::move(by_rerun);
  }
  if (!findings.empty() || evidence.comparison().forward) return;
  explain_by_rerun(evidence, replayer, rerun, findings);
  if (findings.empty()) findings.push_back(unexplained_finding(evidence, explained.bearing));
}

}  // namespace

std::vector<Finding> diagnose(const Evidence& evidence, const Replay& replay, const Rerun& rerun) {
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
  std::vector<Finding> of_gradients;
  explain_gradients(evidence, replay, rerun, of_gradients);
  append(findings, std::move(of_gradients));
  // What is missing and zero in the truth has nothing to do with what is wrong.
  if (lacks_only_zeros(evidence)) add(findings, no_gradient_finding(evidence, nullptr));
  return findings;
}

}  // namespace distgrad
