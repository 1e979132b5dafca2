// Says what one case of an audit shows of the function under test.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "audit/trial.h"
#include "model/report.h"

namespace distgrad {

struct TrialResult {
  Trial trial;
  CaseResult result;
};

enum class Outcome {
  kRight,
  kWrong,            // the gradients or a forward value differ
  kFailsInBackward,  // raises, dies or hangs in backward, though the forward accepted the call
  kDisputed,
  kRefused,            // the call cannot express the case, or says that it does not support it
  kRefusedInBackward,  // the forward accepted it, and the backward says that it does not support it
  kRaises,             // in forward
  kBreaks,             // its ranks die or hang in forward
};
inline constexpr std::size_t kOutcomes = 8;
using OutcomeCounts = std::array<int, kOutcomes>;

inline int count_of(const OutcomeCounts& counts, Outcome outcome) {
  return counts[static_cast<std::size_t>(outcome)];
}

Outcome outcome_of(const TrialResult& result);

inline bool is_failure(Outcome o) { return o == Outcome::kWrong || o == Outcome::kFailsInBackward; }
// Returns true if the outcome says anything about the gradient.
inline bool is_judged(Outcome o) { return o == Outcome::kRight || is_failure(o); }

// Returns in one line why there is no result, in the subject's own words if it has any.
std::string reason_of(const TrialResult& result);

// Returns "exception on rank 1 in backward (uneven): RuntimeError: ...".
std::string error_text(const TrialResult& result);

}  // namespace distgrad
