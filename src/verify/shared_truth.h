// Holds the truth of one program, asked for once for all cases that differ only in subject and
// backend.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "judge/dispute.h"
#include "model/run_result.h"
#include "model/scenario.h"
#include "pool/job.h"
#include "verify/verify.h"

namespace distgrad {

struct SharedTruth {
  std::vector<std::size_t> cases;
  SimulateRequest asked;
  SimulationRun run;
  std::shared_ptr<const ExpectedValues> expected;  // of `run`; null: the ranks send all they have
  std::optional<IntendedTruth> intended;           // of code, once some case needs it
  std::size_t unfinished = 0;                      // cases; at 0 the tensors are freed
};

// Groups the chosen cases by truth. Groups of one world size come together, unless that would keep
// finished results from being printed soon.
std::deque<std::vector<std::size_t>> grouped_by_truth(std::span<const Case> cases,
                                                      const std::vector<std::size_t>& chosen);

inline bool is_expected_to_match(const Case& c) { return c.expected.verdict == Verdict::kMatch; }

// Makes the first request for a truth. conclude.h asks for more if a case turns out to need it.
SimulateRequest first_request(const SharedTruth&, std::span<const Case> cases,
                              const VerifyOptions&);

// Returns the values that right ranks hold, if the simulation is large and came in shared memory.
std::shared_ptr<const ExpectedValues> expected_values(const Program&, const SimulationRun&);

// Returns the cases of a run with simulate_only, to which subjects and backends do not matter.
std::vector<Case> one_for_each_truth(std::span<const Case> cases);

}  // namespace distgrad
