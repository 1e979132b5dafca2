// The backward of one collective call, measured: driven with cotangents that come from one piece of
// one rank's output each, which gives the columns of its matrix M, and with some from all ranks at
// once, which show whether it is linear at all. Beside it what is right for the same cotangents.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/call_on_ranks.h"
#include "judge/pieces.h"

namespace distgrad {

// Where a cotangent is not 0.
struct Probe {
  std::size_t rank = 0;   // of the world
  std::size_t piece = 0;  // of its output
  bool is_unit = false;   // 1 in one element; else a number in each
  std::size_t element = 0;
};

struct Measurement {
  const Program* program = nullptr;
  const CallOnRanks* seen = nullptr;
  std::vector<std::vector<int>> partition;
  PiecesOfCall pieces;

  std::vector<Probe> probes;      // the columns
  bool is_basis = false;          // a unit for every element of every rank
  std::vector<Joint> cotangents;  // by probe, then the joint ones
  Responses measured, right;      // by cotangent
  std::size_t random_cotangents = 0;

  // What the joint cotangents show. Not empty: why M does not say what the backward does.
  enum class Kind { kLinear, kNotRepeatable, kStateful, kNotLinear };
  Kind kind = Kind::kLinear;
  std::string shown;  // of those that are not linear: the smallest thing that shows it

  const CollectiveCall& call() const { return seen->call(); }
  std::size_t world_size() const { return seen->operands.size(); }
  // Indices into `cotangents`.
  std::size_t first_joint() const { return probes.size(); }
};

// How far two responses to one cotangent may lie apart and count as one, on one rank.
double resolution(const Measurement&, std::size_t cotangent, std::size_t rank);
bool is_right(const Measurement&, std::size_t cotangent, std::size_t rank);
// Whether what was measured is right for every cotangent tried.
bool is_right(const Measurement&);

// By piece: few cotangents, which suffice where each piece of x̄ is made of numbers times pieces.
// Nothing where ranks or simulator refuse, or it would take too many cotangents.
std::optional<Measurement> measured(Machine&, const Program&, const CallOnRanks&);

// The same with a unit for every element, where that is not too many.
std::optional<Measurement> measured_by_element(Machine&, const Program&, const CallOnRanks&);

// A measurement's units, one for each element of each rank's output, in this order; empty where
// they are too many for a picture.
std::vector<Joint> units_of(const CallOnRanks&);

// "a basis of 12 cotangents and 5 random ones"
std::string shown_by(const Measurement&);

}  // namespace distgrad
