// One collective call of a run as all ranks of the world made it, and the question what its
// backward should have given for what arrived. Source: shared semantics, "Adjoints".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/machine.h"
#include "model/scenario.h"

namespace distgrad {

// By rank of the world, each rank's elements row-major.
using Joint = std::vector<std::vector<double>>;

// By rank of the world.
struct CallOnRanks {
  const Step* step = nullptr;  // of the program
  std::vector<Array> operands;
  std::vector<Strides> operand_strides;
  std::vector<Shape> outputs;
  std::vector<std::optional<Array>> cotangents;  // that arrived; absent: none did
  std::vector<Strides> cotangent_strides;
  std::vector<std::optional<Array>> given;             // to the operand; absent: None
  std::vector<std::optional<Array>> cotangents_after;  // where the backward wrote into them

  const CollectiveCall& call() const { return *step->collective(); }
  const std::string& name() const { return step->name; }
};

// In program order; empty where a rank did not report them all.
std::vector<CallOnRanks> calls_on_ranks(const Program&, const DistributedRun& observed);

// How operand and cotangents lie in memory when a call is driven.
enum class MemoryLayout { kContiguous, kOperandAsSeen, kCotangentAsSeen, kAsSeen };

// What a driven call gave, or should have given: by cotangent asked, by rank, the operand's.
struct Responses {
  std::vector<Joint> values;
  std::vector<Joint> bounds;  // of simulated ones: how far the ranks' may lie off
  bool is_none = false;       // of measured ones: None for every cotangent on every rank
};

// What is right for these cotangents, for ranks in the program's dtype. `call` is the call itself
// or another one in its place (whose operands and output have the same shapes), `groups` the
// program's or others. Nothing where that call cannot be made, or its gradient is not decided.
std::optional<Responses> right_responses(Machine&, const Program&, const CallOnRanks&,
                                         const CollectiveCall& call,
                                         const std::vector<Group>& groups,
                                         const std::vector<Joint>& cotangents);

// What the ranks' backward gives for them.
std::optional<Responses> measured_responses(Machine&, const Program&, const CallOnRanks&,
                                            const std::vector<Joint>& cotangents,
                                            MemoryLayout = MemoryLayout::kContiguous);

// What the ranks were seen to do in the run itself, beside what is right.
struct CallJudgement {
  bool is_decided = false;  // else what is right could not be computed
  std::vector<int> wrong_ranks;
  bool gave_none = false;  // on a wrong rank
};
CallJudgement judged(Machine&, const Program&, const CallOnRanks&, std::string_view subject,
                     const Tolerance&);

// The cotangents that arrived, zeros where none did.
Joint arrived(const CallOnRanks&);

}  // namespace distgrad
