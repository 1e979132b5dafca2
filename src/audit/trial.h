// One case of an audit: a small program, as a scenario file, that exercises one aspect of a
// collective.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "model/collective_kind.h"

namespace distgrad {

enum class Aspect {
  kRanks,
  kGroups,
  kRoot,
  kDim,
  kDType,
  kShape,
  kCotangent,
  kOperand,
  kGraph,
  kValues,
  // On request:
  kCheckpoint,
  kAutocast,
  kAsync,
  kCompile,
  kDoubleBackward
};
inline constexpr std::size_t kAspectCount = 15;

struct AspectRow {
  std::string_view name;     // the column's heading
  std::string_view meaning;  // what is varied
  bool on_request = false;   // what surrounds the collective, and not itself, is varied
  bool of_code =
      false;  // only of a subject in Python: rule sets and libraries know no such surroundings
};

std::span<const AspectRow> aspects();  // in the order of Aspect
const AspectRow& row_of(Aspect aspect);

struct Trial {
  // Which losses the ranks have. kSum: each has its own (objective "sum"), so that cotangents
  // differ by rank. kMean: the same under the objective "mean": the backward starts with 1/N.
  // kOneLoss: all ranks compute one loss, which counts once ("replicated"). kShares: the same, and
  // every rank holds the operand and gives a share of its gradient, which something adds up after
  // backward.
  enum class Loss { kSum, kMean, kOneLoss, kShares };

  Aspect aspect = Aspect::kRanks;
  Loss loss = Loss::kSum;
  std::string
      name;  // "transposed-cotangent-one-loss", unique within the battery and fit for a file's name
  std::string program;      // the name without the loss: "transposed-cotangent"
  std::string scenario;     // JSON text
  bool is_first = false;    // what is asked before all others: if nothing comes of it, nothing will
  bool is_uneven = false;   // pieces of different sizes
  bool has_splits = false;  // the call says which
  bool needs_all_reduce =
      false;  // it has an all_reduce besides, whose backward must pass the cotangent on
  // Of gradients that are the same on all ranks: right is also who counts their norm once, and not
  // once a rank.
  bool may_count_once = false;
  std::string mode;  // one of kSubjectModes; "": none
};

// "sum", "mean" and "replicated": what an audit can say that a collective is right for.
inline constexpr std::string_view kAuditObjectives[] = {"sum", "mean", "replicated"};

// What it is right for, if nothing of the above: one loss, and an operand that all ranks hold, of
// whose gradient each has a share.
inline constexpr std::string_view kForShares = "shares";

// All ranks have the same result: what is right for losses of their own, whose cotangents differ,
// is wrong for one loss.
bool has_one_result(CollectiveKind kind);

// A value that every rank holds enters what the ranks do apart: as the operand of a collective that
// communicates in backward alone.
bool enters_parallel_region(CollectiveKind kind);

// Whether the case's verdict is also one about this objective. `mean` starts the backward of `sum`
// with 1/N, and a backward is linear in its cotangent. One loss that adds up the ranks' own starts
// it with 1: the program of `sum`, unless the ranks share operands or results. Some cases of every
// form are run for all that.
bool counts_for(const Trial& trial, CollectiveKind kind, std::string_view objective);

}  // namespace distgrad
