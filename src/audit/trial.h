// Makes one case of an audit: a small program, as a scenario file, that exercises one aspect of a
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
  // These are tried only on request.
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
  bool on_request = false;   // varies what surrounds the collective
  // Restricts this to subjects in Python: rule sets and libraries know no such surroundings.
  bool of_code = false;
};

std::span<const AspectRow> aspects();  // in the order of Aspect
const AspectRow& row_of(Aspect aspect);

constexpr const char* kWithoutElements = "empty";  // a program: any function is right of it

struct Trial {
  // Says which losses the ranks have. kSum: each has its own (objective "sum"), so that cotangents
  // differ by rank. kMean: the same under the objective "mean", so the backward starts with 1/N.
  // kOneLoss: all ranks compute one loss, which counts once ("replicated"). kShares: as kOneLoss,
  // but every rank holds the operand and gives a share of its gradient, which something adds up
  // after backward.
  enum class Loss { kSum, kMean, kOneLoss, kShares };

  Aspect aspect = Aspect::kRanks;
  Loss loss = Loss::kSum;
  // Holds "transposed-cotangent-one-loss", say: unique in the battery and fit for a file name.
  std::string name;
  std::string program;      // the name without the loss: "transposed-cotangent"
  std::string scenario;     // JSON text
  bool is_first = false;    // comes before all others: if it gives no result, none will
  bool is_uneven = false;   // pieces of different sizes
  bool has_splits = false;  // the call gives the sizes
  bool may_raise = false;   // a function that raises or hangs in forward refuses this
  // Says that it has another all_reduce, whose backward must pass the cotangent on.
  bool needs_all_reduce = false;
  // Says that gradients are the same on all ranks, so that a backward that counts their norm once,
  // and not once a rank, is right, too.
  bool may_count_once = false;
  std::string mode;  // one of kSubjectModes; "": none
};

// Lists the objectives that an audit may find a collective right for: "sum", "mean" and
// "replicated".
inline constexpr std::string_view kAuditObjectives[] = {"sum", "mean", "replicated"};

// Names what a call is right for, if none of these: one loss, and an operand that all ranks hold
// and of whose gradient each has a share.
inline constexpr std::string_view kForShares = "shares";

// Returns true if all ranks have the same result. What is right for their own losses, whose
// cotangents differ, is then wrong for one loss.
bool has_one_result(CollectiveKind kind);

// Returns true if a value that every rank holds enters what the ranks do apart, as the operand of a
// collective that communicates only in backward.
bool enters_parallel_region(CollectiveKind kind);

// Returns true if the case's verdict holds for this objective, too. `mean` starts the backward of
// `sum` with 1/N, and a backward is linear in its cotangent. One loss that adds up the ranks' own
// starts it with 1, so it is the program of `sum`, unless the ranks share operands or results. Some
// cases of every form are run nevertheless.
bool counts_for(const Trial& trial, CollectiveKind kind, std::string_view objective);

}  // namespace distgrad
