// Draws random programs of N virtual ranks for the tests of the error bounds: operators,
// collectives and a loss, executed in any dtype with plain ATen, in the simulation's manner or as a
// right or wrong subject would.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tolerance/error_analysis.h"

namespace distgrad::testing_programs {

using ByRank = std::vector<at::Tensor>;
using Random = std::mt19937_64;

struct Instruction {
  int op = 0;
  int a = 0, b = 0;  // operands: earlier values
  int variant = 0;
  double number = 1;
};

struct RandomProgram {
  int ranks = 2;
  bool mean = false;             // objective: the cotangents are 1/N
  std::vector<ByRank> leaves;    // float64, values that the dtype holds
  std::vector<bool> replicated;  // one leaf for all ranks (leaves[i][0])
  std::vector<Instruction> instructions;
  std::string text() const;
};

RandomProgram random_program(Random& random, at::ScalarType dtype);

struct Fault {
  enum class Kind { kNone, kDropped, kDoubled, kSwapped };
  Kind kind = Kind::kNone;
  int collective = 0;  // which of the program's collectives
  int rank = 0;
};

struct Outcome {
  ByRank losses;
  std::vector<ByRank> gradients;  // by leaf: by rank, or one summed over the ranks
};

// Executes as the simulator does: in float64, with collectives as tensor code over all ranks.
// Gradients are the tensors themselves, so that the live analysis can be asked about them.
Outcome simulate(const RandomProgram& program, const Fault& fault, ErrorAnalysis& analysis);
// Executes as a subject does: in the dtype, with reductions in an order drawn from `random`,
// scaling before or after sums, and so on.
Outcome run(const RandomProgram& program, at::ScalarType dtype, const Fault& fault, Random& random);

int collectives_in(const RandomProgram& program);

}  // namespace distgrad::testing_programs
