// Says how much of an audit came to a verdict: its last line, and what --strict checks.
#pragma once

#include <string>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

// Counts collectives (each with its op and function), unless a member says otherwise.
struct AuditTally {
  int offered = 0;
  int wrong = 0;
  // Counts those that are right for another objective, if none was asked for; they are not in
  // `wrong`.
  int wrong_for_mean = 0;
  int refused_in_backward = 0;
  int disputed = 0;
  int tried_in_part = 0;  // some case is refused, or raises or kills its ranks in forward
  int not_tried = 0;      // functions that cannot be called
  int not_offered = 0;    // without those that are always refused in backward, which are counted
                          // there

  bool is_complete() const {
    return refused_in_backward + disputed + tried_in_part + not_tried + not_offered == 0;
  }
};

AuditTally tally_of(const std::vector<Judgement>& judgements, std::size_t unusable,
                    std::size_t lacking);

// Returns "3 collectives offered, 0 wrong, 1 refused in backward, 2 not offered".
std::string tally_text(const AuditTally& tally);

// Returns lines that say why --strict fails, or "". If no objective was asked for, all must be
// right for `mean`, which is what DistributedDataParallel does.
std::string strict_complaint(const std::vector<Judgement>& judgements, const AuditTally& tally,
                             const std::string& objective);

}  // namespace distgrad
