// Makes small programs that find out what code offers, which only its ranks know: every kind and
// op, and each option of a kind by itself.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fuzz/choices.h"

namespace distgrad::fuzz {

struct Probe {
  enum class Asks { kOp, kGroups, kRoot, kDim, kSplits };
  nlohmann::ordered_json program;  // as draw_program's
  CollectiveKind kind{};
  ReduceOp op = ReduceOp::kSum;  // of kinds that take one
  Asks asks = Asks::kOp;
};

// Says in words what it asks for: "all_reduce max", "gather with a root other than 0".
std::string text_of(const Probe&);

// Returns probes for everything that is offered so far.
std::vector<Probe> probes(const Offers&);

// Removes what a probe asks for from the offers, since it was skipped, or raised.
void take_out(Offers&, const Probe&);

}  // namespace distgrad::fuzz
