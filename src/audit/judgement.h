// What an audit's results mean for one collective and op: which objectives its backward is right
// for, in which aspects it is not, and which rule it follows.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "audit/outcome.h"

namespace distgrad {

// Of one aspect, the cases that count for the row's convention.
struct Cell {
  OutcomeCounts counts{};

  int tried() const;
  int right() const { return count_of(counts, Outcome::kRight); }
  int judged() const;  // right or not
};

// Something below the table.
struct Note {
  Outcome outcome = Outcome::kRaises;
  std::string text;
};

struct Judgement {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  std::string name;      // "all_reduce product"
  std::string function;  // which was tested: "losses.py:GatherLayer.apply"
  bool offered = false;
  std::string refusal;                 // why not, in the subject's words
  std::vector<std::string> right_for;  // objectives: "sum", "mean", "replicated"; those that the
                                       // user asked for, else all
  std::vector<std::string>
      wrong_for;  // likewise; neither has those that no case could say anything about
  std::string
      convention;  // the one by which the cells are judged; the likeliest where none is right
  std::array<Cell, kAspectCount> cells;  // by Aspect
  OutcomeCounts counts{};                // of all cases that count for the convention
  int right = 0,
      judged = 0;  // cases by that convention, of two ranks or more; without the aspects on request
  std::string signature;    // "P->R", in the terms of spmd_types; "" where no objective is right
  std::string rule;         // "adjoint", "identity-backward", ...
  bool wrong = false;       // right under no objective
  bool only_fails = false;  // no gradient is wrong, and some cases end without one
  std::string explanation;  // of what is wrong; a sentence or a few
  // That most of the subject's collectives are right for other losses, which is no mistake: a
  // module may have functions for values of several types.
  std::string beside_others;
  std::optional<Measured>
      measured;  // the backward of one of the first cases; absent: it could not be measured
  bool is_measured_elsewhere =
      false;  // that case is right, and nothing was measured in the one that fails
  std::vector<Note>
      notes;  // what went another way than right or wrong, one of each kind and reason
  const TrialResult* smallest_failure = nullptr;
  const std::vector<TrialResult>* results = nullptr;  // all of them

  bool is_right_for(std::string_view objective) const;
  bool is_wrong_for(std::string_view objective) const;
  // Whether it is right where every rank computes one and the same loss, and wrong for the sum and
  // the mean of losses of the ranks' own. False where an objective was asked for.
  bool needs_one_loss() const;
  // The text says what such a collective is good for, and which option says that this is meant.
  static constexpr const char* kNeedsOneLoss =
      "right where every rank computes one and the same loss (--objective replicated says that "
      "this is meant); wrong for DistributedDataParallel, and wherever each rank has a loss of its "
      "own";
  // Whether every case of every aspect says something about the gradient.
  bool is_tried_in_full() const;
};

// `results` are those of one collective and op, in the battery's order, and must outlive the
// judgement. `objective`: the only one that counts; "" for any.
Judgement judge_collective(CollectiveKind, ReduceOp, const std::vector<TrialResult>& results,
                           const std::string& objective);

// Fills `beside_others` of what follows another convention than most of a module's collectives,
// where the module has nothing else for it.
void note_other_conventions(std::vector<Judgement>& module);

// "all_reduce product"; the op only where the kind takes one.
std::string row_name(CollectiveKind, ReduceOp);

}  // namespace distgrad
