// Measures the backward of one collective call. Cotangents from one piece of one rank's output each
// give the columns of its matrix M; some from all ranks at once show whether it is linear at all.
// It holds the right answers to the same cotangents beside them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/call_on_ranks.h"
#include "judge/pieces.h"

namespace distgrad {

// Says where a cotangent is not 0.
struct Probe {
  std::size_t rank = 0;   // of the world
  std::size_t piece = 0;  // of its output
  bool is_unit = false;   // 1 in one element; else random numbers in each
  std::size_t element = 0;
};

struct Measurement {
  const Program* program = nullptr;
  const CallOnRanks* seen = nullptr;
  std::vector<std::vector<int>> partition;
  PiecesOfCall pieces;

  std::vector<Probe> probes;                     // the columns
  bool is_basis = false;                         // a unit for every element of every rank
  std::vector<Joint> cotangents;                 // by probe, then the joint ones
  Responses measured, right;                     // by cotangent
  std::vector<std::vector<double>> resolutions;  // by cotangent, by rank: see resolution()
  std::size_t random_cotangents = 0;

  // Says what the joint cotangents show. If not kLinear, M does not describe the backward.
  enum class Kind { kLinear, kNotRepeatable, kStateful, kNotLinear };
  Kind kind = Kind::kLinear;
  std::string shown;  // if not linear: the smallest example that shows it

  const CollectiveCall& call() const { return seen->call(); }
  std::size_t world_size() const { return seen->operands.size(); }
  // Returns the index in `cotangents` of the first joint one.
  std::size_t first_joint() const { return probes.size(); }
};

// Returns how far apart two responses to one cotangent may lie on one rank and count as equal.
double resolution(const Measurement&, std::size_t cotangent, std::size_t rank);
bool is_right(const Measurement&, std::size_t cotangent, std::size_t rank);
// Returns true if the measured answer to every cotangent tried is right.
bool is_right(const Measurement&);

// Measures by piece: a few cotangents suffice if each piece of x̄ is a sum of numbers times pieces.
// Returns nothing if ranks or simulator refuse, or it would take too many cotangents.
std::optional<Measurement> measured(Machine&, const Program&, const CallOnRanks&);

// Measures with a unit for every element, or returns nothing if these are too many.
std::optional<Measurement> measured_by_element(Machine&, const Program&, const CallOnRanks&);

// Returns a measurement's units, one for each element of each rank's output, in this order, or an
// empty list if they are too many for a picture.
std::vector<Joint> units_of(const CallOnRanks&);

// Returns "a basis of 12 cotangents and 5 random ones".
std::string shown_by(const Measurement&);

}  // namespace distgrad
