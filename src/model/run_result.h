// Holds what the simulator and the ranks return, as plain values.
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

// Describes a program that cannot mean anything: an expression that does not compile, shapes that
// do not fit, ... The simulator finds it, and it is reported as a user's error at `pointer` of the
// scenario file.
struct InvalidProgram {
  std::string pointer;
  std::string message;  // one line: the problem; a hint
  std::string caret;    // for expressions: the text, a newline, spaces and '^'; else empty
};

// Holds the gradient of one input: by rank for local inputs (N entries), else one full tensor. An
// absent entry is a missing gradient (None).
struct Gradient {
  std::string input;
  std::vector<std::optional<Array>> parts;
};

struct StepValue {
  std::string step;
  std::vector<Array> by_rank;
  std::vector<Array> bound;  // absolute error bound of each element; empty if not asked for
};

// Chooses a step, by name, whose backward is replayed with a rule. Steps without a choice use the
// truth.
struct RuleChoice {
  std::string step;
  std::string rule;
};

// Compares a directional derivative of the declared objective by central finite differences with
// the one from the gradients.
struct FiniteDifferences {
  enum class Answer {
    kNotAsked,
    kAgree,
    kDisagree
  };  // not asked: a kink, a jump or a cut graph near the point
  Answer answer = Answer::kNotAsked;
  double numeric = 0;
  double derivative = 0;  // from the gradients
};

// Counts in elements, as torch does; empty means contiguous.
using Strides = std::vector<std::int64_t>;

// Asks for the backward of one collective call again and again, with cotangents that the driver
// chooses. The program's only step is the call. It has two local inputs by rank: the call's
// operand, and `cotangents`, which does not require grad and stacks K cotangents of the call's
// output along a new first dim. Nothing else of the program counts. Forward and backward run K
// times, each from a fresh leaf; the answer is, by rank, the operand's K cotangents, stacked alike.
struct Drive {
  std::string cotangents;                     // name of the input
  std::vector<Strides> operand_strides = {};  // by rank; empty: contiguous everywhere
  // Holds, by rank, the strides of one cotangent; a stride of 0 repeats the first element there.
  std::vector<Strides> cotangent_strides = {};
};

struct SimulateRequest {
  Program program;
  // Has one list, by rank, for each objective asked for; the first is the declared one.
  std::vector<std::vector<double>> weights;
  // Has the cotangents, by rank, that right ranks may start with if these differ from weights[0]:
  // `reference` under `replicated` divides by the size, and so rounds where the truth does not. The
  // bounds hold for these, too.
  std::vector<std::vector<double>> run_weights;
  std::vector<RuleChoice> rules;  // replay; empty for the truth
  // Gives every rank a leaf of its own for every input, whatever its layout (its piece of a shard).
  // Gradients and bounds then come by rank (N parts each), as the ranks hold them after backward
  // and before any `sync`. Replays set it.
  bool leaves_by_rank = false;
  bool with_bounds = true;  // error bounds for the first objective's gradients, losses and steps
  // Leaves the bounds out if there are very many elements, whose bounds take long.
  bool bounds_may_wait = false;
  bool with_cotangents = false;  // cotangents of steps, for `explain` (first objective)
  bool with_guards = true;       // evaluate `single_device` and `truth` expressions too
  bool on_gpu = false;  // the bounds are those of a run on a GPU, whose functions are less accurate
  bool with_differences = false;  // check the first objective's gradients by finite differences
  // If present, asks for the right answer of a driven call. `gradients[0]` and `bounds` then have
  // only the operand, by rank, each part with the K cotangents stacked, and `steps` has the output.
  // Weights, rules and guards are ignored.
  std::optional<Drive> drive = {};
};

// Marks an element of the truth that is unknown: the loss has a kink or jump there, or rounding
// before it decides. A rank that differs there is not blamed.
struct UndecidedElement {
  std::string input;
  int part = 0;              // index in the parts of that input's Gradient
  std::int64_t element = 0;  // row-major
  std::string why;
};

struct Simulation {
  std::optional<InvalidProgram> invalid;  // if set, nothing else holds
  std::vector<double> losses;             // by rank, float64
  std::vector<double> loss_bounds;
  std::vector<StepValue> steps;  // forward values of collective steps (all steps with_cotangents)
  std::vector<StepValue> cotangents;  // only with_cotangents; of ranks that start from weights[0]
  std::vector<std::vector<Gradient>> gradients;  // [objective asked][input that requires grad]
  std::vector<Gradient> bounds;          // of gradients[0]: absolute, by element; 0 means bitwise
  bool exact = false;                    // every bound is zero
  std::vector<std::string> bound_notes;  // for --verbose: how each bound came about
  std::vector<std::string> undecided;    // branches that lie within the rounding error, a line each
  std::string forward_only;  // not empty: why the gradients are not judged (NaN among the operands
                             // of a min or max)
  // True if every cotangent that reaches one of the program's collective calls is 0, so that no
  // collective's backward affects the gradients. Found only if the request is with_guards.
  bool reaches_no_collective = false;
  // These hold the loss of `single_device`, its gradients and their bounds (local inputs by rank,
  // as the layout says).
  std::optional<double> single_loss;
  double single_loss_bound = 0;
  std::vector<Gradient> single_gradients;
  std::vector<Gradient> single_bounds;
  std::vector<Gradient> file_truth;  // the file's `truth`, evaluated
  FiniteDifferences differences;     // only with_differences
  // Only for programs with code calls. `held` is gradients[0] of the program in which whatever the
  // user's code takes out of autograd (detach, no_grad, a Function whose backward is not its
  // forward's derivative) stays constant while the inputs move; empty if there is none. `cuts`
  // describes them, a line each.
  std::vector<Gradient> held;
  std::vector<std::string> cuts;
  std::vector<UndecidedElement> undecided_elements;
  std::vector<std::string> casts;  // the code's, to narrower dtypes: gradients are without them
  // The ranks' own backward gives these gradients if the code runs in float64. False if unknown.
  bool is_right_in_float64 = false;
};

struct RankError {
  ErrorKind kind = ErrorKind::kException;
  int rank = -1;
  std::string step;
  std::string message;
  bool in_backward = false;  // the step's backward raised, or the rank died or hangs in it
};

struct Warning {
  int rank = 0;
  std::string text;
};

// Records one collective call of a case as its rank saw it in the run itself: the cotangent that
// arrived and what its backward made of it. Every tensor is a copy made before anybody could write
// to it.
struct ObservedCall {
  std::string step;
  Array operand;
  Strides operand_strides;
  // Holds what arrived at the output; absent if the backward never came here.
  std::optional<Array> cotangent;
  Strides cotangent_strides;
  std::optional<Array> given;  // to the operand, by this call alone; absent: None
  // Holds what the backward left in the cotangent, if it wrote into it.
  std::optional<Array> cotangent_after;
};

// Asks for one case on real ranks.
struct RunRequest {
  Program program;
  std::string subject;
  std::string backend;
  std::vector<double> weights;  // backward_weights, by rank
  std::string device = {};      // "cpu" or "cuda"; empty: the CPU
  // If not empty, also asks for the truth, from finite differences of the ranks' own forward run,
  // with weights as in SimulateRequest::weights. The answer is in rank 0's result.
  std::vector<std::vector<double>> measured = {};
  bool observe = false;  // also reports every collective call: RankResult::observed and ::shares
  // Asks to drive one call instead of running the case. gradients[0] has the answer, `steps` the
  // output.
  std::optional<Drive> drive = {};
};

struct RankResult {
  double loss = 0;
  Shape loss_shape;
  // Follows the order of the program's inputs that require grad; absent means None.
  std::vector<std::optional<Array>> gradients;
  // Has the forward values of the reported steps (Step::is_reported), in program order.
  std::vector<Array> steps;
  std::vector<std::string> warnings;
  // Says what the backend lacks, e.g. "all_reduce max: composed of all_gather".
  std::vector<std::string> composed;
  std::string skipped;                       // why, if the subject does not offer this kind or op
  std::optional<Simulation> measured;        // on rank 0, if the request asks for it
  std::vector<ObservedCall> observed;        // if asked for: the collective steps, in program order
  std::vector<std::optional<Array>> shares;  // if observed: as gradients, before any `sync`
  std::optional<RankError> error;
};

struct DistributedRun {
  std::vector<RankResult> ranks;
  // Holds the error that explains the case: the first cause, not its echoes.
  std::optional<RankError> error;
  std::vector<std::string> output;  // by rank: captured stdout and stderr
  double elapsed_s = 0;
};

}  // namespace distgrad
