// Describes one collective call of a run as all ranks of the world made it, and asks what its
// backward should have given for what arrived. Source: shared semantics, "Adjoints".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/machine.h"
#include "model/scenario.h"

namespace distgrad {

// Holds values by world rank, then by element in row-major order.
using Joint = std::vector<std::vector<double>>;

// Holds every list by world rank.
struct CallOnRanks {
  const Step* step = nullptr;  // of the program
  std::vector<Array> operands;
  std::vector<Strides> operand_strides;
  std::vector<Shape> outputs;
  std::vector<std::optional<Array>> cotangents;  // those that arrived; absent: none did
  std::vector<Strides> cotangent_strides;
  std::vector<std::optional<Array>> given;             // the operand's gradient; absent: None
  std::vector<std::optional<Array>> cotangents_after;  // what the backward wrote into them

  const CollectiveCall& call() const { return *step->collective(); }
  const std::string& name() const { return step->name; }
};

// Returns the calls in program order, or an empty list if some rank did not report them all.
std::vector<CallOnRanks> calls_on_ranks(const Program&, const DistributedRun& observed);

// Says how operand and cotangents lie in memory when a call is driven.
enum class MemoryLayout { kContiguous, kOperandAsSeen, kCotangentAsSeen, kAsSeen };

// Holds operand gradients that a driven call gave or should have given, by cotangent, by rank.
struct Responses {
  std::vector<Joint> values;
  std::vector<Joint> bounds;  // only if simulated: how far the ranks' values may lie off
  bool is_none = false;       // only if measured: None for every cotangent on every rank
};

// Returns the right answers to these cotangents, for ranks in the program's dtype. `call` is the
// call itself or another in its place whose operands and output have the same shapes; `groups` are
// the program's or others. Returns nothing if that call is invalid or its gradient undecided.
std::optional<Responses> right_responses(Machine&, const Program&, const CallOnRanks&,
                                         const CollectiveCall& call,
                                         const std::vector<Group>& groups,
                                         const std::vector<Joint>& cotangents);

// Returns what the ranks' backward gives for these cotangents, or nothing if the run fails.
std::optional<Responses> measured_responses(Machine&, const Program&, const CallOnRanks&,
                                            const std::vector<Joint>& cotangents,
                                            MemoryLayout = MemoryLayout::kContiguous);

// Judges what the ranks did in the run itself.
struct CallJudgement {
  bool is_decided = false;  // false: the right gradient could not be computed
  std::vector<int> wrong_ranks;
  bool gave_none = false;  // on a wrong rank
};
CallJudgement judged(Machine&, const Program&, const CallOnRanks&, std::string_view subject,
                     const Tolerance&);

// Returns the cotangents that arrived, with zeros where none did.
Joint arrived(const CallOnRanks&);

}  // namespace distgrad
