// Says what the fuzzer's programs may contain: what the command line asks for, and what the subject
// offers.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "model/collective_kind.h"
#include "model/dtype.h"

namespace distgrad::fuzz {

// Says what a subject offers of one kind. `ops` counts for kinds that take one; for others its
// first entry says whether the kind is offered.
struct Offer {
  std::array<bool, kReduceOpNames.size()> ops = {};
  bool groups = true;  // other than the whole world
  bool root = true;    // other than 0
  bool dim = true;     // other than the default
  bool splits = true;  // uneven ones, or operands of uneven extents

  bool any() const {
    for (const bool op : ops)
      if (op) return true;
    return false;
  }
};

using Offers = std::array<Offer, kCollectives.size()>;

// Returns everything, as `reference` offers.
Offers all_offers();

// Returns what a built-in subject's rows offer, except calls whose row raises. A subject that mixes
// others by kind ("all_gather=simclr") offers the named kinds and all_reduce. Code is taken to
// offer everything.
Offers offers_of(const std::string& subject);

struct Choices {
  std::vector<int> world_sizes;         // drawn with these frequencies
  std::vector<DType> dtypes;            // likewise
  std::vector<std::string> objectives;  // "sum", "mean", "replicated", "rank", "axes"; likewise
  Offers offers = all_offers();
  // The subject's copy and slice are not the adjoint (as Megatron's), so inputs of that layout are
  // drawn, too, in the regions that these are for.
  bool invariant = false;
};

// Returns the usual frequencies.
Choices default_choices();

}  // namespace distgrad::fuzz
