// The audit's battery: for one collective and op, small programs that exercise every aspect of it, as scenario files.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/collective_kind.h"

namespace distgrad {

enum class Aspect {
  kRanks, kGroups, kRoot, kDim, kDType, kShape, kCotangent, kOperand, kGraph, kValues,
  // On request:
  kCheckpoint, kAutocast, kAsync, kCompile, kDoubleBackward
};
inline constexpr std::size_t kAspectCount = 15;

struct AspectRow {
  std::string_view name;     // the column's heading
  std::string_view meaning;  // what is varied
  bool on_request = false;   // what surrounds the collective, and not itself, is varied
  bool of_code = false;      // only of a subject in Python: rule sets and libraries know no such surroundings
};

std::span<const AspectRow> aspects();  // in the order of Aspect

struct Trial {
  // Under which objective it is meaningful. kSum: every rank has a loss of its own (objective "sum"), so that cotangents
  // differ by rank. kOneLoss: all ranks compute the same loss, which counts once (objective "replicated").
  enum class Loss { kSum, kOneLoss };

  Aspect aspect = Aspect::kRanks;
  Loss loss = Loss::kSum;
  std::string name;          // "transposed cotangent", unique within the battery and fit for a file's name
  std::string scenario;      // JSON text
  bool needs_all_reduce = false;  // it has an all_reduce besides, whose backward must pass the cotangent on
  std::string mode;               // one of kSubjectModes; "": none
};

// Smallest first. `op` counts for kinds that take one. `requested`: aspects that are tried on request only; they come last.
std::vector<Trial> battery(CollectiveKind kind, ReduceOp op, std::span<const Aspect> requested = {});

}  // namespace distgrad
