// What an audit's results mean for one collective and op: which objective its backward is right for, in which aspects it is
// not, and which rule it follows.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "audit/battery.h"
#include "model/report.h"

namespace distgrad {

struct TrialResult {
  Trial trial;
  CaseResult result;
};

enum class CellState { kNotTried, kRight, kWrong, kRaised, kBroken, kRefused };

struct Cell {
  CellState state = CellState::kNotTried;
  int right = 0, tried = 0;
};

struct Judgement {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  std::string name;                    // "all_reduce product"
  bool offered = false;
  std::string refusal;                 // why not, in the subject's words
  std::vector<std::string> right_for;  // objectives: "sum", "mean", "replicated"; those that the user asked for, else all
  std::string convention;              // the one by which the cells are judged; the likeliest where none is right
  std::array<Cell, kAspectCount> cells;  // by Aspect
  int right = 0, judged = 0;           // cases by that convention, of two ranks or more; without the aspects on request
  std::string signature;               // "P->R", in the terms of spmd_types; "" where no objective is right
  std::string rule;                    // "adjoint", "identity-backward", ...
  bool tried_with_one_loss = false;    // else its being right for "sum" only is no convention
  bool wrong = false;                  // right under no objective, or under another than the module's other collectives
  std::string explanation;             // of what is wrong; a sentence or a few
  std::vector<std::string> errors;     // trials in which ranks died, hung or raised, told and not failed: one of each, and of each aspect on request
  const TrialResult* smallest_failure = nullptr;
};

// `results` are those of one collective and op, in the battery's order, and must outlive the judgement. `objective`: the only one
// that counts; "" for any.
Judgement judge_collective(CollectiveKind, ReduceOp, const std::vector<TrialResult>& results, const std::string& objective);

// Marks as wrong what follows another convention than most of a module's collectives.
void judge_together(std::vector<Judgement>& module);

// "all_reduce product"; the op only where the kind takes one.
std::string row_name(CollectiveKind, ReduceOp);

}  // namespace distgrad
