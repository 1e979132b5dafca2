// How much of an audit came to a verdict: its last line, and what --strict asks.
#pragma once

#include <string>
#include <vector>

#include "audit/judgement.h"

namespace distgrad {

// Collectives (each with its op and function), but for what is said otherwise.
struct AuditTally {
  int offered = 0;
  int wrong = 0;
  int wrong_for_mean =
      0;  // not among the wrong: right for another objective, and none was asked for
  int refused_in_backward = 0;
  int disputed = 0;
  int tried_in_part = 0;  // some case is refused, raises in forward, or its ranks die there
  int not_tried = 0;      // functions that cannot be called
  int not_offered = 0;    // of these those that are refused in backward, always, are counted there

  bool is_complete() const {
    return refused_in_backward + disputed + tried_in_part + not_tried + not_offered == 0;
  }
};

AuditTally tally_of(const std::vector<Judgement>& judgements, std::size_t unusable,
                    std::size_t lacking);

// "3 collectives offered, 0 wrong, 1 refused in backward, 2 not offered"
std::string tally_text(const AuditTally& tally);

// Why --strict is not content, as lines; "" where it is. Where no objective was asked for, what all
// are to be right for is `mean`: what DistributedDataParallel does.
std::string strict_complaint(const std::vector<Judgement>& judgements, const AuditTally& tally,
                             const std::string& objective);

}  // namespace distgrad
