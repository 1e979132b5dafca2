// Judges an audit's results for one collective and op: which objectives its backward is right for,
// which aspects it is wrong in, and which rule it follows.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "audit/outcome.h"

namespace distgrad {

// Counts one aspect's cases that count for the row's convention.
struct Cell {
  OutcomeCounts counts{};

  int tried() const;
  int right() const { return count_of(counts, Outcome::kRight); }
  int judged() const;  // right or not
};

// Holds a note that stands below the table.
struct Note {
  Outcome outcome = Outcome::kRaises;
  std::string text;
};

struct Judgement {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  std::string name;      // "all_reduce product"
  std::string function;  // the one tested: "losses.py:GatherLayer.apply"
  bool offered = false;
  std::string refusal;                 // why it is not offered, in the subject's words
  std::vector<std::string> right_for;  // objectives: "sum", "mean", "replicated"; those that the
                                       // user asked for, else all
  // Likewise. Objectives that no case says anything about are in neither list.
  std::vector<std::string> wrong_for;
  // Names the objective by which the cells are judged; the likeliest if none is right.
  std::string convention;
  std::array<Cell, kAspectCount> cells;  // by Aspect
  OutcomeCounts counts{};                // of all cases that count for the convention
  // Count the cases by that convention, of two ranks or more, without the aspects on request.
  int right = 0, judged = 0;
  std::string signature;    // "P->R", in spmd_types' terms; "" if no objective is right
  std::string rule;         // "adjoint", "identity-backward", ...
  bool wrong = false;       // right under no objective
  bool only_fails = false;  // no gradient is wrong, but some cases end without one
  std::string explanation;  // of what is wrong, in a few sentences
  // Says that most of the subject's collectives are right for other losses. That is no mistake,
  // since a module may have functions for values of several types.
  std::string beside_others;
  // Holds the backward of one of the first cases; absent if it could not be measured.
  std::optional<Measured> measured;
  // True if that case is right, and nothing was measured in the one that fails.
  bool is_measured_elsewhere = false;
  // Hold results other than right or wrong, one of each kind and reason.
  std::vector<Note> notes;
  const TrialResult* smallest_failure = nullptr;
  const std::vector<TrialResult>* results = nullptr;  // all of them

  bool is_right_for(std::string_view objective) const;
  bool is_wrong_for(std::string_view objective) const;
  // Returns true if it is right when every rank computes one loss, and wrong for the sum and the
  // mean of the ranks' own losses. Returns false if an objective was asked for.
  bool needs_one_loss() const;
  // Says what such a collective is good for, and which option says that this is meant.
  static constexpr const char* kNeedsOneLoss =
      "right where every rank computes one and the same loss (--objective replicated says that "
      "this is meant); wrong for DistributedDataParallel, and wherever each rank has a loss of its "
      "own";
  // Returns true if every case of every aspect says something about the gradient.
  bool is_tried_in_full() const;
};

// Judges results of one collective and op, in the battery's order; they must outlive the judgement.
// `objective` is the only one that counts; "" means any.
Judgement judge_collective(CollectiveKind, ReduceOp, const std::vector<TrialResult>& results,
                           const std::string& objective);

// Fills `beside_others` for functions that follow another convention than most of a module's
// collectives, if the module has nothing else for that collective.
void note_other_conventions(std::vector<Judgement>& module);

// Returns "all_reduce product"; without the op if the kind takes none.
std::string row_name(CollectiveKind, ReduceOp);

}  // namespace distgrad
