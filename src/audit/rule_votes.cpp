#include "audit/rule_votes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace distgrad {
namespace {

// Returns true if the finding explains anything. A factor without a step is arithmetic, which
// explains as little as nothing.
bool explains(const Finding& f) {
  return f.rule != "objective" && f.rule != "unexplained" &&
         !(f.rule == "scaled" && f.step.empty());
}

struct Votes {
  int first = 0;     // trials whose first finding, and so the likeliest, it is
  int anywhere = 0;  // trials that have it among all findings that fit the numbers
};

bool votes_on(const TrialResult& t, Losses losses) {
  const bool one = t.trial.loss == Trial::Loss::kOneLoss;
  return one == (losses == Losses::kOne) && !is_on_request(t.trial) && !shares_operand(t.trial) &&
         tells_conventions_apart(t) && t.result.verdict == Verdict::kMismatch;
}

const Finding* finding_named(const CaseResult& r, const std::string& rule) {
  const auto found = std::find_if(r.findings.begin(), r.findings.end(),
                                  [&](const Finding& f) { return f.rule.text() == rule; });
  return found == r.findings.end() ? nullptr : &*found;
}

}  // namespace

bool shares_operand(const Trial& trial) { return trial.mode == "shared"; }
bool is_on_request(const Trial& trial) { return row_of(trial.aspect).on_request; }
bool tells_conventions_apart(const TrialResult& t) {
  return t.result.which.world_size > 1 && t.trial.program != kWithoutElements;
}

std::string most_named_rule(const std::vector<TrialResult>& results, Losses losses) {
  std::map<std::string, Votes> votes;
  int scaled = 0, unexplained = 0;
  for (const TrialResult& t : results) {
    if (!votes_on(t, losses)) continue;
    std::set<std::string> rules;
    for (const Finding& f : t.result.findings) {
      if (!explains(f) || !rules.insert(f.rule).second) continue;
      ++votes[f.rule].anywhere;
      if (rules.size() == 1) ++votes[f.rule].first;
    }
    if (!rules.empty() || t.result.findings.empty()) continue;
    const FindingName rule = t.result.findings.back().rule;
    scaled += rule == "scaled";
    unexplained += rule == "unexplained";
  }
  const auto most = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.first, a.second.anywhere) <
           std::pair(b.second.first, b.second.anywhere);
  });
  // A rule that explains few of many explains nothing.
  if (most != votes.end() && scaled + unexplained <= 2 * most->second.anywhere) return most->first;
  if (scaled + unexplained == 0) return "";
  return scaled > unexplained ? "scaled" : "unexplained";
}

const TrialResult* smallest_failure(const std::vector<TrialResult>& results, CollectiveKind kind,
                                    const std::string& objective, const std::string& rule) {
  const TrialResult *first = nullptr, *names_it = nullptr;
  for (const TrialResult& t : results) {
    const Outcome outcome = outcome_of(t);
    if (!counts_for(t.trial, kind, objective) || !is_failure(outcome)) continue;
    if (!t.result.findings.empty() && t.result.findings[0].rule.text() == rule) return &t;
    if (!names_it && finding_named(t.result, rule)) names_it = &t;
    if (!first || (outcome == Outcome::kWrong && outcome_of(*first) != Outcome::kWrong)) first = &t;
  }
  return names_it ? names_it : first;
}

std::string text_of(const CaseResult& r, const std::string& rule) {
  if (const Finding* f = finding_named(r, rule)) return f->text;
  return r.findings.empty() ? "" : r.findings[0].text;
}

}  // namespace distgrad
