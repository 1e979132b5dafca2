// The truth of one program: asked for once, for all cases that differ in subject and backend only.
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
  std::size_t unfinished = 0;                      // cases; at 0 the tensors are let go
};

// The places in `cases` that are chosen, by truth; those of one world size together where that does
// not keep what is done from being printed soon.
std::deque<std::vector<std::size_t>> grouped_by_truth(std::span<const Case> cases,
                                                      const std::vector<std::size_t>& chosen);

inline bool is_expected_to_match(const Case& c) { return c.expected.verdict == Verdict::kMatch; }

// What a truth is asked for at first. More is asked for where a case turns out to need it
// (conclude.h).
SimulateRequest first_request(const SharedTruth&, std::span<const Case> cases,
                              const VerifyOptions&);

// What ranks that are right hold in whole, as far as the simulation came in shared memory, where it
// is large.
std::shared_ptr<const ExpectedValues> expected_values(const Program&, const SimulationRun&);

// The cases of a run with simulate_only: subjects and backends do not matter to it.
std::vector<Case> one_for_each_truth(std::span<const Case> cases);

}  // namespace distgrad
