#include "audit/judgement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "audit/notes.h"
#include "audit/rule_votes.h"
#include "base/lines.h"

namespace distgrad {
namespace {

struct Tally {
  int right = 0, judged = 0;
  bool all_right() const { return judged > 0 && right == judged; }
};

Tally tally(const std::vector<TrialResult>& results, CollectiveKind kind,
            std::string_view objective) {
  Tally t;
  for (const TrialResult& r : results) {
    const Outcome outcome = outcome_of(r);
    if (is_on_request(r.trial) || !counts_for(r.trial, kind, objective)) continue;
    if (!is_judged(outcome) || !tells_conventions_apart(r)) continue;
    ++t.judged;
    t.right += outcome == Outcome::kRight;
  }
  return t;
}

// Returns the signature; kForShares is for an operand that all ranks hold.
std::string_view signature_of(CollectiveKind kind, const std::string& objective) {
  if (objective == kForShares) return "R->I";
  const LayoutSignature& signature = traits(kind).signature;
  return objective == "replicated" ? signature.one_loss : signature.own_losses;
}

// Names what is right for one loss, if the ranks' own losses do not show it.
std::string rule_for_one_loss(CollectiveKind kind) {
  if (kind == CollectiveKind::kCopy) return "sum-to-all";
  if (kind == CollectiveKind::kSlice) return "gather";
  return "";
}

template <class Holds>
const TrialResult* first_that(const std::vector<TrialResult>& results, const Holds& holds) {
  const auto found = std::find_if(results.begin(), results.end(), holds);
  return found == results.end() ? nullptr : &*found;
}

const TrialResult* first_of(const std::vector<TrialResult>& results, Outcome outcome) {
  return first_that(results, [=](const TrialResult& t) { return outcome_of(t) == outcome; });
}

// Says why nothing could be judged: the subject does not offer it, or raises in every trial.
std::string why_refused(const std::vector<TrialResult>& results) {
  if (const TrialResult* t = first_of(results, Outcome::kRefusedInBackward))
    return "refused in backward: " + reason_of(*t);
  if (const TrialResult* t = first_of(results, Outcome::kRaises)) return "raises: " + reason_of(*t);
  if (const TrialResult* t = first_of(results, Outcome::kRefused)) return reason_of(*t);
  return "nothing could be judged";
}

// Chooses the convention. If none is right, the ranks' own losses say the most, and a few cases
// that are right by chance (no elements, equal cotangents) make no convention.
void choose_convention(Judgement& j, const std::vector<TrialResult>& results,
                       const std::string& asked) {
  constexpr double kClearlyMore = 0.25;
  double best = -2;
  for (const std::string_view objective : kAuditObjectives) {
    if (!asked.empty() && objective != asked) continue;
    const Tally t = tally(results, j.kind, objective);
    if (t.judged > 0) (t.all_right() ? j.right_for : j.wrong_for).emplace_back(objective);
    const double share = t.judged == 0 ? -0.5 : static_cast<double>(t.right) / t.judged;
    if (share > best + (j.convention == "sum" ? kClearlyMore : 0))
      best = share, j.convention = objective;
  }
  if (j.right_for.empty() && tally(results, j.kind, kForShares).all_right())
    j.right_for.emplace_back(kForShares);
  if (!j.right_for.empty()) j.convention = j.right_for.front();
}

// Counts failing cases whose verdict is about the convention, and those that fail in a way with a
// name of its own.
struct Failures {
  int mismatches = 0;  // gradients or forward values
  const TrialResult* in_backward = nullptr;
  int in_backward_count = 0;
  const TrialResult* shared_operand = nullptr;
};

Failures failures_of(const Judgement& j, const std::vector<TrialResult>& results) {
  Failures f;
  for (const TrialResult& t : results) {
    const Outcome outcome = outcome_of(t);
    if (is_on_request(t.trial) || !counts_for(t.trial, j.kind, j.convention) ||
        !is_failure(outcome))
      continue;
    if (shares_operand(t.trial)) {
      if (!f.shared_operand) f.shared_operand = &t;
    } else if (outcome == Outcome::kFailsInBackward) {
      if (++f.in_backward_count == 1) f.in_backward = &t;
    } else {
      ++f.mismatches;
    }
  }
  return f;
}

std::string how_it_fails(const TrialResult& t) {
  switch (t.result.error->kind) {
    case ErrorKind::kException:
      return "raises";
    case ErrorKind::kCrash:
      return "dies";
    case ErrorKind::kHang:
    case ErrorKind::kDesync:
      return "hangs";
    case ErrorKind::kBackend:
    case ErrorKind::kSubject:
      break;
  }
  return "fails";
}

std::string backward_failure_text(const Judgement& j, const Failures& f) {
  const TrialResult& t = *f.in_backward;
  std::string text = fmt::format(
      "In {} of {} cases its backward {}, though the forward took what it was given: {}: {}",
      f.in_backward_count, j.judged, how_it_fails(t), t.trial.name,
      first_line(t.result.error->message));
  if (traits(j.kind).exchanges() && t.trial.is_uneven)
    text +=
        " The backward sends by the sizes that the forward received by, and receives by those that "
        "it sent by.";
  return text;
}

constexpr const char* kWritesIntoItsOperand =
    "It is right where it gets a copy of its operand, and not where the program uses that tensor "
    "before and after the call: its forward writes into it. Work on a clone.";

// Explains a row in which no gradient is wrong, and yet some cases fail.
void blame_what_fails(Judgement& j, const Failures& f) {
  std::vector<std::string> ways, texts;
  if (f.in_backward) {
    ways.push_back(how_it_fails(*f.in_backward) + " in backward");
    texts.push_back(backward_failure_text(j, f));
  }
  if (f.shared_operand) {
    ways.emplace_back("writes into its operand");
    texts.emplace_back(kWritesIntoItsOperand);
  }
  j.only_fails = true;
  j.rule = fmt::format("{}, but it {}", j.rule, fmt::join(ways, ", and "));
  j.explanation = fmt::format("{}", fmt::join(texts, " "));
}

// These explain a failure if every case that is always tried is right.
constexpr std::pair<Aspect, const char*> kMeaningOfFailure[] = {
    {Aspect::kCheckpoint,
     "Recomputed in backward, it gives another gradient: look for what its forward keeps outside "
     "ctx, and for what it does only the first time."},
    {Aspect::kAutocast,
     "Under torch.autocast it gives another gradient: look for casts, buffers of a fixed dtype, "
     "and custom_fwd and custom_bwd."},
    {Aspect::kAsync,
     "Called asynchronously and waited for, it gives another result: look for what is read or "
     "returned before wait()."},
    {Aspect::kCompile, "Through torch.compile it gives another gradient than eager."},
    {Aspect::kDoubleBackward,
     "Its gradient is right, and the gradient of that is not: its backward is cut off from the "
     "graph, as a plain torch.distributed call, .detach() or .data in it does. Build it of "
     "differentiable collectives, or mark it with @once_differentiable, so that differentiating "
     "twice raises."},
};

void blame_surroundings(Judgement& j, const std::vector<TrialResult>& results) {
  j.wrong = true;
  bool only_raises = true;
  std::vector<std::string> names;
  for (const auto& [aspect, meaning] : kMeaningOfFailure) {
    const auto first = [&, of = aspect](Outcome outcome) {
      return first_that(results, [&](const TrialResult& t) {
        return t.trial.aspect == of && counts_for(t.trial, j.kind, j.convention) &&
               outcome_of(t) == outcome;
      });
    };
    const TrialResult* wrong = first(Outcome::kWrong);
    const TrialResult* raises = first(Outcome::kFailsInBackward);
    if (!wrong && !raises) continue;
    only_raises = only_raises && !wrong;
    names.emplace_back(row_of(aspect).name);
    j.explanation += (j.explanation.empty() ? "" : " ") +
                     (wrong ? std::string(meaning)
                            : fmt::format("In {} its backward raises, where it does not else: {}",
                                          names.back(), reason_of(*raises)));
  }
  j.rule = fmt::format("{}, but {} in {}", j.rule, only_raises ? "it raises" : "not",
                       fmt::join(names, ", "));
}

void count(Judgement& j, const std::vector<TrialResult>& results) {
  for (const TrialResult& t : results) {
    if (!counts_for(t.trial, j.kind, j.convention)) continue;
    const auto outcome = static_cast<std::size_t>(outcome_of(t));
    ++j.cells[static_cast<std::size_t>(t.trial.aspect)].counts[outcome];
    ++j.counts[outcome];
  }
  const Tally t = tally(results, j.kind, j.convention);
  j.right = t.right;
  j.judged = t.judged;
}

std::string rule_of(const Judgement& j, const std::vector<TrialResult>& results) {
  const bool one_loss = j.convention == "replicated";
  if (j.convention == kForShares) return "adjoint";
  std::string rule;
  if (!j.right_for.empty() && one_loss) rule = rule_for_one_loss(j.kind);
  // A forward that sometimes goes wrong does not come from the backward that it always has.
  if (j.right_for.empty() && one_loss && 2 * j.right > j.judged)
    rule = most_named_rule(results, Losses::kOne);
  if (rule.empty()) rule = most_named_rule(results, Losses::kOwn);
  return rule.empty() ? "adjoint" : rule;
}

constexpr const char* kReadsMemory =
    "Its forward is right where the operand is contiguous, and wrong for the same values in "
    "another order of memory ({}): it reads the operand in the order of its memory. Call "
    ".contiguous() on it before it goes to the collective.";

// Returns true if all failing operands differ from right ones only in their memory layout.
bool fails_by_strides_alone(const Judgement& j, const std::vector<TrialResult>& results) {
  return !first_that(results, [&](const TrialResult& t) {
    return counts_for(t.trial, j.kind, j.convention) && is_failure(outcome_of(t)) &&
           !is_on_request(t.trial) &&
           (t.trial.aspect != Aspect::kOperand || shares_operand(t.trial));
  });
}

void name_the_mistake(Judgement& j, const std::vector<TrialResult>& results) {
  const Failures f = failures_of(j, results);
  const bool any_judged = first_that(results, [](const TrialResult& t) {
    return t.result.verdict == Verdict::kMatch || t.result.verdict == Verdict::kMismatch;
  });
  j.smallest_failure = smallest_failure(results, j.kind, j.convention, j.rule);
  if (!any_judged) {
    j.rule = f.in_backward ? fmt::format("it {} in backward", how_it_fails(*f.in_backward))
                           : "its ranks die or hang";
    if (f.in_backward) j.explanation = backward_failure_text(j, f);
  } else if (f.mismatches > 0) {
    j.explanation = text_of(j.smallest_failure->result, j.rule);
    if (j.rule == "forward" && fails_by_strides_alone(j, results)) {
      j.rule = "contiguity";
      j.explanation = fmt::format(kReadsMemory, j.smallest_failure->trial.name);
    }
  } else if (f.in_backward || f.shared_operand) {
    blame_what_fails(j, f);
  } else if (j.judged == 0) {
    j.rule = "it raises, dies or hangs on more than one rank";
  }
}

// Returns true if cases on several ranks were judged; one rank shows nothing.
bool is_offered(const std::vector<TrialResult>& results) {
  bool on_one_rank = false, raises = false;
  for (const TrialResult& t : results) {
    const Outcome outcome = outcome_of(t);
    if (outcome == Outcome::kBreaks || outcome == Outcome::kDisputed) return true;
    if (is_judged(outcome) && (tells_conventions_apart(t) || outcome == Outcome::kFailsInBackward))
      return true;
    on_one_rank = on_one_rank || is_judged(outcome);
    raises = raises || outcome == Outcome::kRaises;
  }
  return on_one_rank && raises;
}

bool is_only_disputed(const Judgement& j, const std::vector<TrialResult>& results) {
  return j.judged == 0 && first_of(results, Outcome::kDisputed) &&
         !first_of(results, Outcome::kBreaks) && !first_of(results, Outcome::kRaises);
}

// Returns true if the function follows a convention: that takes a collective for which the ranks'
// own losses and one loss for all differ.
bool has_a_convention(const Judgement& j) {
  return j.offered && !j.wrong && j.convention != kForShares &&
         (has_one_result(j.kind) || enters_parallel_region(j.kind)) && !j.right_for.empty();
}

}  // namespace

int Cell::tried() const {
  int sum = 0;
  for (const int n : counts) sum += n;
  return sum;
}

int Cell::judged() const {
  return count_of(counts, Outcome::kRight) + count_of(counts, Outcome::kWrong) +
         count_of(counts, Outcome::kFailsInBackward);
}

bool Judgement::is_right_for(std::string_view objective) const {
  return std::find(right_for.begin(), right_for.end(), objective) != right_for.end();
}

bool Judgement::is_wrong_for(std::string_view objective) const {
  return std::find(wrong_for.begin(), wrong_for.end(), objective) != wrong_for.end();
}

bool Judgement::needs_one_loss() const {
  return is_right_for("replicated") && is_wrong_for("sum") && is_wrong_for("mean");
}

bool Judgement::is_tried_in_full() const {
  return count_of(counts, Outcome::kDisputed) + count_of(counts, Outcome::kRefused) +
             count_of(counts, Outcome::kRefusedInBackward) + count_of(counts, Outcome::kRaises) +
             count_of(counts, Outcome::kBreaks) ==
         0;
}

std::string row_name(CollectiveKind kind, ReduceOp op) {
  const CollectiveTraits& t = traits(kind);
  return t.takes_op ? fmt::format("{} {}", t.name, name_of(op)) : std::string(t.name);
}

Judgement judge_collective(CollectiveKind kind, ReduceOp op,
                           const std::vector<TrialResult>& results, const std::string& objective) {
  Judgement j;
  j.kind = kind;
  j.op = op;
  j.name = row_name(kind, op);
  j.results = &results;
  choose_convention(j, results, objective);
  count(j, results);
  j.offered = is_offered(results);
  if (!j.offered) {
    j.refusal = why_refused(results);
    return j;
  }
  if (!j.right_for.empty()) j.signature = signature_of(kind, j.convention);
  j.rule = rule_of(j, results);
  j.wrong = j.right_for.empty() && !is_only_disputed(j, results);
  j.notes = notes_of(results, kind, j.convention);
  if (j.wrong)
    name_the_mistake(j, results);
  else if ((j.smallest_failure = smallest_failure(results, kind, j.convention, j.rule)))
    blame_surroundings(j, results);
  return j;
}

void note_other_conventions(std::vector<Judgement>& module) {
  // Has, by collective and op, what some function for it is right for.
  std::map<std::string, std::set<std::string>> offered;
  for (const Judgement& j : module)
    if (has_a_convention(j)) offered[j.name].insert(j.right_for.begin(), j.right_for.end());
  std::string most;
  int most_votes = 0;
  for (const std::string_view objective : kAuditObjectives) {
    const auto votes =
        static_cast<int>(std::count_if(offered.begin(), offered.end(), [&](const auto& row) {
          return row.second.contains(std::string(objective));
        }));
    if (votes > most_votes) most = objective, most_votes = votes;
  }
  for (Judgement& j : module)
    if (has_a_convention(j) && !offered[j.name].contains(most))
      j.beside_others = fmt::format(
          "right for \"{}\", where most of the subject's collectives are right for \"{}\". Both "
          "fit one program only where it uses each as its type says",
          j.right_for.front(), most);
}

}  // namespace distgrad
