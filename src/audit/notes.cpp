#include "audit/notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "audit/rule_votes.h"

namespace distgrad {
namespace {

// Groups cases without a result for the same reason.
struct SameReason {
  Outcome outcome;
  std::string reason;
  std::vector<std::string> cases;
};

bool stands_by_reason(Outcome o) {
  return o == Outcome::kRefused || o == Outcome::kRefusedInBackward || o == Outcome::kDisputed;
}

std::string text_of(const SameReason& t) {
  const std::string what = t.outcome == Outcome::kDisputed            ? "disputed"
                           : t.outcome == Outcome::kRefusedInBackward ? "refused in backward"
                                                                      : "refused";
  return fmt::format("{} ({}): {}", what, fmt::join(t.cases, ", "), t.reason);
}

}  // namespace

std::vector<Note> notes_of(const std::vector<TrialResult>& results, CollectiveKind kind,
                           const std::string& objective) {
  std::vector<SameReason> groups;
  // Has the first of each kind of error, and of each aspect on request.
  std::set<std::pair<Outcome, Aspect>> noted;
  std::vector<Note> notes;
  for (const TrialResult& t : results) {
    if (!counts_for(t.trial, kind, objective)) continue;
    const Outcome outcome = outcome_of(t);
    if (outcome == Outcome::kRight || outcome == Outcome::kWrong) continue;
    if (!stands_by_reason(outcome)) {
      const Aspect aspect = is_on_request(t.trial) ? t.trial.aspect : Aspect::kRanks;
      if (t.result.error && noted.emplace(outcome, aspect).second)
        notes.push_back({outcome, error_text(t)});
      continue;
    }
    const std::string reason = reason_of(t);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const SameReason& g) {
      return g.outcome == outcome && g.reason == reason;
    });
    if (same == groups.end())
      groups.push_back({outcome, reason, {t.trial.name}});
    else
      same->cases.push_back(t.trial.name);
  }
  for (const SameReason& g : groups) notes.push_back({g.outcome, text_of(g)});
  std::stable_sort(notes.begin(), notes.end(), [](const Note& a, const Note& b) {
    constexpr Outcome kOrder[] = {Outcome::kFailsInBackward, Outcome::kBreaks,
                                  Outcome::kRaises,          Outcome::kRefusedInBackward,
                                  Outcome::kDisputed,        Outcome::kRefused};
    return std::find(std::begin(kOrder), std::end(kOrder), a.outcome) <
           std::find(std::begin(kOrder), std::end(kOrder), b.outcome);
  });
  return notes;
}

}  // namespace distgrad
