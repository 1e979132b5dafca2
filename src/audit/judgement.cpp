#include "audit/judgement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/lines.h"

namespace distgrad {
namespace {

constexpr const char* kObjectives[] = {"sum", "mean", "replicated"};

Trial::Loss loss_of(const std::string& objective) {
  return objective == "replicated" ? Trial::Loss::kOneLoss : Trial::Loss::kSum;
}

bool was_refused(const CaseResult& r) { return r.verdict == Verdict::kSkipped; }
bool raised(const CaseResult& r) { return r.verdict == Verdict::kError && r.error && r.error->kind == "exception"; }
bool broke(const CaseResult& r) { return r.verdict == Verdict::kError && !raised(r); }

// A refusal comes before any work is done, or says that it is one.
bool failed_in_backward(const CaseResult& r) {
  if (!raised(r) || !r.error->in_backward) return false;
  constexpr std::string_view kRefusals[] = {"NotImplemented", "not implemented", "not supported", "unsupported",
                                            "Unsupported", "not support ", "only support", "only implemented"};
  return std::none_of(std::begin(kRefusals), std::end(kRefusals),
                      [&](std::string_view words) { return r.error->message.find(words) != std::string::npos; });
}

bool was_judged(const CaseResult& r) { return r.verdict == Verdict::kMatch || r.verdict == Verdict::kMismatch; }

bool forward_is_right(const CaseResult& r) {
  return std::none_of(r.findings.begin(), r.findings.end(), [](const Finding& f) { return f.rule == "forward"; });
}

// Of a trial with losses of the ranks' own the truth under `sum` and `mean` is known, of one with a single loss its own.
bool is_right(const CaseResult& r, const std::string& objective) {
  if (objective != "mean") return r.verdict == Verdict::kMatch;
  if (!forward_is_right(r)) return false;
  return std::all_of(r.gradients.begin(), r.gradients.end(), [&](const GradientComparison& g) {
    return std::any_of(g.matches.begin(), g.matches.end(),
                       [&](const auto& m) { return m.first == objective && m.second; });
  });
}

// One rank is every objective at once and shows nothing about the others.
bool tells_conventions_apart(const TrialResult& t) { return t.result.which.world_size > 1; }

// The ranks' own gradient norms are added up, which makes a sum of what is differentiated: no other objective has a truth.
bool counts_for(const Trial& trial, const std::string& objective) {
  if (trial.aspect == Aspect::kDoubleBackward && objective != "sum") return false;
  return trial.loss == loss_of(objective);
}

bool is_on_request(const Trial& trial) { return aspects()[static_cast<std::size_t>(trial.aspect)].on_request; }

struct Tally {
  int right = 0, judged = 0;
  bool all_right() const { return judged > 0 && right == judged; }
};

Tally tally(const std::vector<TrialResult>& results, const std::string& objective) {
  Tally t;
  for (const TrialResult& r : results) {
    if (is_on_request(r.trial) || !counts_for(r.trial, objective)) continue;
    if (!was_judged(r.result) || !tells_conventions_apart(r)) continue;
    ++t.judged;
    t.right += is_right(r.result, objective);
  }
  return t;
}

void count(Cell& cell, const CaseResult& r, const std::string& convention) {
  ++cell.tried;
  const bool right = was_judged(r) && is_right(r, convention);
  cell.right += right || r.verdict == Verdict::kDisputed;
  CellState state = CellState::kWrong;
  if (right || r.verdict == Verdict::kDisputed) state = CellState::kRight;
  else if (was_refused(r)) state = CellState::kRefused;
  else if (raised(r)) state = CellState::kRaised;
  else if (broke(r)) state = CellState::kBroken;
  const auto severity = [](CellState s) {
    constexpr CellState order[] = {CellState::kNotTried, CellState::kRefused, CellState::kRight,
                                   CellState::kRaised,   CellState::kWrong,   CellState::kBroken};
    return std::find(std::begin(order), std::end(order), s) - std::begin(order);
  };
  if (severity(state) > severity(cell.state)) cell.state = state;
}

std::string error_text(const TrialResult& t) {
  const RankError& e = *t.result.error;
  return fmt::format("{}{}{} ({}): {}", e.kind, e.rank >= 0 && e.kind == "exception" ? fmt::format(" on rank {}", e.rank) : "",
                     e.in_backward ? " in backward" : "", t.trial.name, first_line(e.message));
}

// Whose transpose is which: P partial (to be summed), R replicated with cotangents that differ by rank, I invariant (one
// loss), V varying. Source: spmd_types; Megatron's f is I->R, its g P->I.
std::string signature_of(CollectiveKind kind, const std::string& objective) {
  const bool one = objective == "replicated";
  switch (kind) {
    case CollectiveKind::kAllReduce: return one ? "P->I" : "P->R";
    case CollectiveKind::kAllGather: return one ? "V->I" : "V->R";
    case CollectiveKind::kBroadcast: return one ? "V->I" : "V->R";
    case CollectiveKind::kReduceScatter: return "P->V";
    case CollectiveKind::kReduce: return "P->V";
    case CollectiveKind::kCopy: return one ? "I->R" : "V->V";
    case CollectiveKind::kSlice: return one ? "I->V" : "V->V";
    default: return "V->V";
  }
}

// What is right for one loss has a name of its own where no loss of the ranks' own tells it.
std::string rule_for_one_loss(CollectiveKind kind) {
  if (kind == CollectiveKind::kCopy) return "sum-to-all";
  if (kind == CollectiveKind::kSlice) return "gather";
  return "";
}

// Whether it explains anything. A factor without a step is arithmetic, and no more of an explanation than none.
bool explains(const Finding& f) {
  return f.rule != "objective" && f.rule != "unexplained" && !(f.rule == "scaled" && f.step.empty());
}

struct Votes {
  int first = 0;     // trials of which it is the first finding, and so the likeliest
  int anywhere = 0;  // trials that have it among their findings, which are all that fit the numbers
};

// The rule that explains the most trials; of those that fail by the convention, where one is given: a forward that goes wrong
// somewhere is not the doing of the backward that it has everywhere.
std::string most_named_rule(const std::vector<TrialResult>& results, Trial::Loss loss, const std::string& failing_for = "") {
  std::map<std::string, Votes> votes;
  int scaled = 0, unexplained = 0;
  for (const TrialResult& t : results) {
    if (t.trial.loss != loss || is_on_request(t.trial) || t.result.verdict != Verdict::kMismatch) continue;
    if (!tells_conventions_apart(t) || (!failing_for.empty() && is_right(t.result, failing_for))) continue;
    std::set<std::string> rules;
    for (const Finding& f : t.result.findings) {
      if (!explains(f) || !rules.insert(f.rule).second) continue;
      ++votes[f.rule].anywhere;
      if (rules.size() == 1) ++votes[f.rule].first;
    }
    if (!rules.empty() || t.result.findings.empty()) continue;
    const std::string& rule = t.result.findings.back().rule;
    scaled += rule == "scaled";
    unexplained += rule == "unexplained";
  }
  const auto most = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.first, a.second.anywhere) < std::pair(b.second.first, b.second.anywhere);
  });
  // One that explains few of many explains nothing.
  if (most != votes.end() && scaled + unexplained <= 2 * most->second.anywhere) return most->first;
  if (scaled + unexplained == 0) return "";
  return scaled > unexplained ? "scaled" : "unexplained";
}

const Finding* finding_named(const CaseResult& r, const std::string& rule) {
  const auto found = std::find_if(r.findings.begin(), r.findings.end(), [&](const Finding& f) { return f.rule == rule; });
  return found == r.findings.end() ? nullptr : &*found;
}

// The first of which the rule is the first finding, else that names it at all, if any does.
const TrialResult* smallest_failure(const std::vector<TrialResult>& results, const std::string& convention,
                                    const std::string& rule) {
  const TrialResult *first = nullptr, *names_it = nullptr;
  for (const TrialResult& t : results) {
    if (!counts_for(t.trial, convention) || !was_judged(t.result) || is_right(t.result, convention)) continue;
    if (!t.result.findings.empty() && t.result.findings[0].rule == rule) return &t;
    if (!names_it && finding_named(t.result, rule)) names_it = &t;
    if (!first) first = &t;
  }
  return names_it ? names_it : first;
}

const TrialResult* first_that(const std::vector<TrialResult>& results, bool (*holds)(const CaseResult&)) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const TrialResult& t) { return holds(t.result); });
  return found == results.end() ? nullptr : &*found;
}

// The first of each kind among what is always tried, and in each aspect on request.
std::vector<std::string> errors_of(const std::vector<TrialResult>& results) {
  std::vector<std::string> errors;
  std::set<std::pair<Aspect, bool>> told;
  for (const auto holds : {broke, raised})
    for (const TrialResult& t : results) {
      const Aspect aspect = is_on_request(t.trial) ? t.trial.aspect : Aspect::kRanks;
      if (holds(t.result) && told.emplace(aspect, holds == broke).second)
        errors.push_back(error_text(t));
    }
  return errors;
}

// Nothing could be judged: the subject offers it not at all, or raises in every trial.
std::string why_refused(const std::vector<TrialResult>& results) {
  if (const TrialResult* t = first_that(results, raised)) return "raises: " + first_line(t->result.error->message);
  if (const TrialResult* t = first_that(results, was_refused)) return t->result.why;
  return "nothing could be judged";
}

// One rank apart, which every function is right on.
bool nothing_but_errors(const std::vector<TrialResult>& results) {
  return std::none_of(results.begin(), results.end(),
                      [](const TrialResult& t) { return was_judged(t.result) && tells_conventions_apart(t); });
}

// Where none is right, losses of the ranks' own tell the most, and a few cases that are right by chance (of no elements, of
// equal cotangents) do not make a convention.
void choose_convention(Judgement& j, const std::vector<TrialResult>& results, const std::string& asked) {
  constexpr double kClearlyMore = 0.25;
  double best = -2;
  for (const std::string objective : kObjectives) {
    if (!asked.empty() && objective != asked) continue;
    const Tally t = tally(results, objective);
    if (t.all_right()) j.right_for.push_back(objective);
    const double share = t.judged == 0 ? -0.5 : static_cast<double>(t.right) / t.judged;
    if (share > best + (j.convention == "sum" ? kClearlyMore : 0)) best = share, j.convention = objective;
  }
  if (!j.right_for.empty()) j.convention = j.right_for.front();
}

// Of the rule that the row is named by, where the case has it.
std::string text_of(const CaseResult& r, const std::string& rule) {
  if (const Finding* f = finding_named(r, rule)) return f->text;
  return r.findings.empty() ? "" : r.findings[0].text;
}

// Where every case is right that is always tried.
constexpr std::pair<Aspect, const char*> kMeaningOfFailure[] = {
    {Aspect::kCheckpoint,
     "Recomputed in backward, it gives another gradient: look for what its forward keeps outside ctx, and for what it does only "
     "the first time."},
    {Aspect::kAutocast,
     "Under torch.autocast it gives another gradient: look for casts, buffers of a fixed dtype, and custom_fwd and custom_bwd."},
    {Aspect::kAsync,
     "Called asynchronously and waited for, it gives another result: look for what is read or returned before wait()."},
    {Aspect::kCompile, "Through torch.compile it gives another gradient than eager."},
    {Aspect::kDoubleBackward,
     "Its gradient is right, and the gradient of that is not: its backward is cut off from the graph, as a plain "
     "torch.distributed call, .detach() or .data in it does. Build it of differentiable collectives, or mark it with "
     "@once_differentiable, so that who differentiates twice is told."},
};

void blame_surroundings(Judgement& j, const std::vector<TrialResult>& results) {
  j.wrong = true;
  std::vector<std::string> names;
  for (const auto& [aspect, meaning] : kMeaningOfFailure) {
    const bool fails = std::any_of(results.begin(), results.end(), [&, of = aspect](const TrialResult& t) {
      return t.trial.aspect == of && counts_for(t.trial, j.convention) && was_judged(t.result) &&
             !is_right(t.result, j.convention);
    });
    if (!fails) continue;
    names.emplace_back(aspects()[static_cast<std::size_t>(aspect)].name);
    j.explanation += (j.explanation.empty() ? "" : " ") + std::string(meaning);
  }
  j.rule = fmt::format("{}, but not in {}", j.rule, fmt::join(names, ", "));
}

}  // namespace

std::string row_name(CollectiveKind kind, ReduceOp op) {
  const CollectiveTraits& t = traits(kind);
  return t.takes_op ? fmt::format("{} {}", t.name, name_of(op)) : std::string(t.name);
}

Judgement judge_collective(CollectiveKind kind, ReduceOp op, const std::vector<TrialResult>& results,
                           const std::string& objective) {
  Judgement j;
  j.kind = kind;
  j.op = op;
  j.name = row_name(kind, op);
  const bool any_broken = first_that(results, broke) != nullptr || first_that(results, failed_in_backward) != nullptr;
  j.offered = any_broken || first_that(results, was_judged) != nullptr;
  if (!j.offered) {
    j.refusal = why_refused(results);
    return j;
  }
  choose_convention(j, results, objective);
  for (const TrialResult& t : results)
    if (counts_for(t.trial, j.convention)) count(j.cells[static_cast<std::size_t>(t.trial.aspect)], t.result, j.convention);
  if (!j.right_for.empty()) j.signature = signature_of(kind, j.convention);
  if (!j.right_for.empty() && j.convention == "replicated") j.rule = rule_for_one_loss(kind);
  const Tally by_convention = tally(results, j.convention);
  j.right = by_convention.right;
  j.judged = by_convention.judged;
  if (j.right_for.empty() && 2 * by_convention.right > by_convention.judged)
    j.rule = most_named_rule(results, loss_of(j.convention), j.convention);
  if (j.rule.empty()) j.rule = most_named_rule(results, Trial::Loss::kSum);
  if (j.rule.empty()) j.rule = "adjoint";
  j.tried_with_one_loss = tally(results, "replicated").judged > 0;
  j.wrong = j.right_for.empty();
  j.smallest_failure = smallest_failure(results, j.convention, j.rule);
  if (j.wrong && j.smallest_failure) j.explanation = text_of(j.smallest_failure->result, j.rule);
  if (!j.wrong && j.smallest_failure) blame_surroundings(j, results);
  j.errors = errors_of(results);
  if (first_that(results, was_judged) == nullptr)
    j.rule = first_that(results, broke) ? "its ranks die or hang" : "it raises in backward";
  else if (j.wrong && nothing_but_errors(results)) j.rule = "it raises, dies or hangs on more than one rank";
  return j;
}

void judge_together(std::vector<Judgement>& module) {
  std::map<std::string, int> votes;
  for (const Judgement& j : module)
    if (j.tried_with_one_loss)
      for (const std::string& objective : j.right_for) ++votes[objective];
  if (votes.empty()) return;
  const auto most = std::max_element(votes.begin(), votes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  for (Judgement& j : module) {
    if (!j.offered || j.wrong || !j.tried_with_one_loss || j.right_for.empty()) continue;
    if (std::find(j.right_for.begin(), j.right_for.end(), most->first) != j.right_for.end()) continue;
    j.wrong = true;
    j.explanation = fmt::format("right for the objective \"{}\" only, while the subject's other collectives are right for \"{}\": "
                                "no loss fits both", j.right_for.front(), most->first);
  }
}

}  // namespace distgrad
