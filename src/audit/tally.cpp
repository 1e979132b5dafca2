#include "audit/tally.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/words.h"

namespace distgrad {

AuditTally tally_of(const std::vector<Judgement>& judgements, std::size_t unusable,
                    std::size_t lacking) {
  AuditTally t;
  t.not_tried = static_cast<int>(unusable);
  t.not_offered = static_cast<int>(lacking);
  for (const Judgement& j : judgements) {
    const auto any = [&](Outcome o) { return count_of(j.counts, o) > 0; };
    t.offered += j.offered;
    t.wrong += j.wrong;
    t.wrong_for_mean += !j.wrong && j.is_wrong_for("mean");
    t.refused_in_backward += any(Outcome::kRefusedInBackward);
    t.disputed += any(Outcome::kDisputed);
    t.tried_in_part +=
        j.offered && (any(Outcome::kRefused) || any(Outcome::kRaises) || any(Outcome::kBreaks));
    t.not_offered += !j.offered && !any(Outcome::kRefusedInBackward);
  }
  return t;
}

std::string tally_text(const AuditTally& t) {
  std::string text =
      fmt::format("{} offered, {} wrong", count_text(t.offered, "collective"), t.wrong);
  const auto add = [&](int number, const char* what) {
    if (number > 0) text += fmt::format(", {} {}", number, what);
  };
  add(t.wrong_for_mean, "wrong for DistributedDataParallel");
  add(t.refused_in_backward, "refused in backward");
  add(t.disputed, "disputed");
  add(t.tried_in_part, "tried in part");
  add(t.not_tried, "not tried");
  add(t.not_offered, "not offered");
  return text;
}

std::string strict_complaint(const std::vector<Judgement>& judgements, const AuditTally& tally,
                             const std::string& objective) {
  std::vector<std::string> for_others;
  for (const Judgement& j : judgements)
    if (j.offered && !j.wrong && objective.empty() && !j.is_right_for("mean"))
      for_others.push_back(j.name);
  std::string why;
  if (!for_others.empty())
    why = fmt::format(
        "{} not right for mean (DistributedDataParallel); --objective says what is meant",
        fmt::join(for_others, ", "));
  if (!tally.is_complete())
    why += std::string(why.empty() ? "" : "; ") +
           "not everything was tried; --op, --collective and --without leave out what is not meant";
  return why.empty() ? "" : wrapped("strict: " + why + ".", 0, 80);
}

}  // namespace distgrad
