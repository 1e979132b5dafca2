// What comes back from the simulator and from the ranks: plain values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/array.h"
#include "model/error_kind.h"
#include "model/objective.h"
#include "model/program.h"

namespace distgrad {

// A program that cannot mean anything: an expression that does not compile, shapes that do not fit,
// ... Found by the simulator, reported as a user's error at `pointer` of the scenario file.
struct InvalidProgram {
  std::string pointer;
  std::string message;  // one line: what is wrong; hint
  std::string caret;    // for expressions: its text, newline, spaces and '^'; else empty
};

// The gradient of one input: by rank for local inputs (N entries), else one full tensor.
// An absent entry is a missing gradient (None).
struct Gradient {
  std::string input;
  std::vector<std::optional<Array>> parts;
};

struct StepValue {
  std::string step;
  std::vector<Array> by_rank;
  std::vector<Array> bound;  // absolute error bound of each element; empty where not asked
};

// Which subject's backward is replayed: for each step (by name) the rule; steps not named use the
// truth.
struct RuleChoice {
  std::string step;
  std::string rule;
};

// A directional derivative of the declared objective, by central finite differences and by the
// gradients.
struct FiniteDifferences {
  enum class Answer {
    kNotAsked,
    kAgree,
    kDisagree
  };  // not asked: a kink, a jump or a cut graph near the point
  Answer answer = Answer::kNotAsked;
  double numeric = 0;
  double derivative = 0;  // as the gradients have it
};

// In elements, as torch counts them; empty: contiguous.
using Strides = std::vector<std::int64_t>;

// Asks for the backward of one collective call again and again, with cotangents of the driver's
// choice. The program has one step, the call, and two local inputs by rank: its operand, whose name
// is the step's operand, and `cotangents`, which wants no gradient: K cotangents of the call's
// output, stacked along a new first dim. Nothing else of the program counts. Forward and backward
// run K times, each from a fresh leaf; what comes back is, by rank, the operand's K cotangents,
// stacked alike.
struct Drive {
  std::string cotangents;                     // name of the input
  std::vector<Strides> operand_strides = {};  // by rank; empty: contiguous everywhere
  std::vector<Strides> cotangent_strides =
      {};  // by rank, of one cotangent; a stride of 0 takes the first element along it
};

struct SimulateRequest {
  Program program;
  std::vector<std::vector<double>>
      weights;  // for each asked objective, by rank; the first is the declared one
  // Cotangents that right ranks may really start with where these are not weights[0], by rank:
  // `reference` under `replicated` divides by the size, and so rounds where the truth does not. The
  // bounds hold for these as well.
  std::vector<std::vector<double>> run_weights;
  std::vector<RuleChoice> rules;  // replay; empty for the truth
  // Every rank has a leaf of its own of every input, whatever its layout (its piece of a shard):
  // gradients and bounds come by rank (N parts each), as the ranks hold them after backward and
  // before any `sync`. For replays.
  bool leaves_by_rank = false;
  bool with_bounds = true;  // error bounds for the first objective's gradients, losses and steps
  // None where there are very many elements, of which bounds take long.
  bool bounds_may_wait = false;
  bool with_cotangents = false;  // cotangents of steps, for `explain` (first objective)
  bool with_guards = true;       // evaluate `single_device` and `truth` expressions too
  bool on_gpu = false;  // the bounds are those of a run on a GPU, whose functions are less accurate
  bool with_differences = false;  // check the first objective's gradients by finite differences
  // Not absent: what is right for a driven call. `gradients[0]` and `bounds` then have the operand
  // alone, by rank, each part with the K cotangents stacked; `steps` has the output; weights, rules
  // and guards do not count.
  std::optional<Drive> drive = {};
};

// An element of the truth that is not known: the loss has a kink or jump there, or the rounding of
// something before it decides. Nobody is accused by it.
struct UndecidedElement {
  std::string input;
  int part = 0;              // of the Gradient of that input
  std::int64_t element = 0;  // row-major
  std::string why;
};

struct Simulation {
  std::optional<InvalidProgram> invalid;  // then nothing else holds
  std::vector<double> losses;             // by rank, float64
  std::vector<double> loss_bounds;
  std::vector<StepValue> steps;  // forward values of collective steps (all steps with_cotangents)
  std::vector<StepValue> cotangents;  // only with_cotangents; of ranks that start from weights[0]
  std::vector<std::vector<Gradient>> gradients;  // [objective asked][input that requires grad]
  std::vector<Gradient> bounds;          // of gradients[0]: absolute, by element; 0 means bitwise
  bool exact = false;                    // every bound is zero
  std::vector<std::string> bound_notes;  // for --verbose: how each bound came about
  std::vector<std::string> undecided;  // branches undecided within the rounding error, a line each
  std::string forward_only;  // not empty: why the gradients are not judged (NaN among a min's or
                             // max's operands)
  // single_device: its loss with bound, and gradients with bounds (as layout says: local inputs by
  // rank).
  // No cotangent other than 0 reaches a collective call that the program has: no backward of one
  // has anything to do with the gradients. Found out where the request is with_guards.
  bool reaches_no_collective = false;
  std::optional<double> single_loss;
  double single_loss_bound = 0;
  std::vector<Gradient> single_gradients;
  std::vector<Gradient> single_bounds;
  std::vector<Gradient> file_truth;  // the file's `truth`, evaluated
  FiniteDifferences differences;     // only with_differences
  // Of programs with calls only. `held` is gradients[0] of the program in which what the user's
  // code takes out of autograd (detach, no_grad, a Function whose backward is not its forward's
  // derivative) stays what it is while the inputs move; empty where there is no such thing. `cuts`
  // says what it is, a line each.
  std::vector<Gradient> held;
  std::vector<std::string> cuts;
  std::vector<UndecidedElement> undecided_elements;
};

struct RankError {
  ErrorKind kind = ErrorKind::kException;
  int rank = -1;
  std::string step;
  std::string message;
  bool in_backward = false;  // the step's backward raised; or the rank died in it, or hangs there
};

struct Warning {
  int rank = 0;
  std::string text;
};

// One collective call of a case, as its rank saw it in the run itself: what its backward made of
// what arrived. Every tensor is a copy made before anybody could write to it.
struct ObservedCall {
  std::string step;
  Array operand;
  Strides operand_strides;
  std::optional<Array>
      cotangent;  // that arrived at the output; absent: none did (the backward never came here)
  Strides cotangent_strides;
  std::optional<Array> given;  // to the operand, by this call alone; absent: None
  std::optional<Array>
      cotangent_after;  // where the backward wrote into the cotangent: what it left there
};

// One case on real ranks.
struct RunRequest {
  Program program;
  std::string subject;
  std::string backend;
  std::vector<double> weights;  // backward_weights, by rank
  std::string device = {};      // "cpu" or "cuda"; empty: the CPU
  // Not empty: the truth is asked for as well, from finite differences of the ranks' own forward
  // run; as SimulateRequest::weights. The answer is in rank 0's result.
  std::vector<std::vector<double>> measured = {};
  bool observe = false;  // tell of every collective call, too: RankResult::observed and ::shares
  std::optional<Drive> drive =
      {};  // instead of the case: one call driven; the answer is gradients[0], `steps` the output
};

struct RankResult {
  double loss = 0;
  Shape loss_shape;
  // In the order of the program's inputs that require grad; absent: None.
  std::vector<std::optional<Array>> gradients;
  std::vector<Array>
      steps;  // forward values of the steps that are reported (Step::is_reported), in program order
  std::vector<std::string> warnings;
  std::vector<std::string>
      composed;         // "all_reduce max: composed of all_gather" (what the backend lacks)
  std::string skipped;  // the subject does not offer this kind or op: why
  std::optional<Simulation> measured;  // rank 0's, where the request asks for it
  std::vector<ObservedCall> observed;  // where asked for: of the collective steps, in program order
  std::vector<std::optional<Array>> shares;  // where observed: as gradients, before any `sync`
  std::optional<RankError> error;
};

struct DistributedRun {
  std::vector<RankResult> ranks;
  std::optional<RankError>
      error;  // the one that explains the case: the first cause, not its echoes
  std::vector<std::string> output;  // by rank: captured stdout and stderr
  double elapsed_s = 0;
};

}  // namespace distgrad
