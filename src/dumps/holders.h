// Says which ranks have a parameter, which lack it, and which hold other parts of the model.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dumps/differences.h"
#include "dumps/dump.h"

namespace distgrad::dumps {

// Describes what one rank has of a parameter.
struct PieceOnRank {
  int rank;
  const RankDump* dump;
  const DumpGradient* gradient;  // null: not in the file

  const DumpTensor* tensor() const {
    return gradient && gradient->tensor ? &*gradient->tensor : nullptr;
  }
  const DumpLayout* layout() const {
    return gradient && gradient->layout ? &*gradient->layout : nullptr;
  }
  const DumpMesh& mesh() const { return dump->meshes[layout()->mesh]; }
  std::vector<int> ranks() const {
    return rank == kWhole ? std::vector<int>{} : std::vector<int>{rank};
  }
};

// Says what part a rank's tensor is of one copy of its piece: all of it or, with Partial, a share
// of what the ranks with the same key make up together.
struct Share {
  std::vector<int> key;
  int shares = 1;     // of the copy, this one included
  double factor = 1;  // of the reduced shares
  Stream::Reduction reduction = Stream::Reduction::kSum;
};

// Reads "sum", "avg" or "mean", "max", "min" or "product"; returns nothing for another word.
std::optional<Stream::Reduction> reduction_named(const std::string& op);

// Returns the share of a rank that says how its piece lies. For a Partial that nobody can reduce it
// returns nothing, and the reason in `unclear`.
std::optional<Share> share_of(const PieceOnRank&, std::string& unclear);

// Returns true if ranks hold one-dimensional tensors, with parts of the elements, of a parameter
// that has more dimensions in the reference, and do not say how they lie.
bool holds_flat_pieces(const Dump& observed, const Dump& reference);

// Lists the ranks that hold a parameter, and those that need not, by what they hold in its place.
struct RanksByPart {
  std::vector<int> holders, others, nothing;

  auto operator<=>(const RanksByPart&) const = default;
};

class Holders {
 public:
  // Parameters that match a pattern (of a shell) may be absent on some ranks. `are_flat` says that
  // some are pieces of flattened tensors, as FSDP1's are.
  Holders(const Dump&, std::vector<std::string> partly_held, bool are_flat = false);

  // Returns the ranks that have it or ought to, ascending. It leaves out a rank that names other
  // parameters in its place, as pipeline stages do, one that may hold none of the parameter's kind,
  // as a rank whose expert got no token, and one whose file says that it is elsewhere.
  std::vector<PieceOnRank> of(const std::string& name);

  const Dump& dump() const { return dump_; }
  bool are_flat() const { return are_flat_; }
  const std::vector<DumpGroups>& groups() const { return groups_; }
  // Returns true if a pattern, as a shell's, fits the user's or the plain name.
  bool matches(const std::string& name, const std::string& pattern) const;
  // Has the parameters of which ranks were left out only because of what else they hold.
  const std::map<RanksByPart, std::set<std::string>>& inferred() const { return inferred_; }

 private:
  bool is_partly_held(const std::string& name) const;
  bool holds_others(const RankDump& rank, const std::vector<int>& holders);
  bool may_hold_none(int rank, const std::string& name) const;

  const Dump& dump_;
  std::vector<DumpGroups> groups_;
  std::vector<std::string> partly_held_;
  bool are_flat_;
  std::map<std::string, std::vector<int>> listed_;  // by parameter, the ranks that name it
  std::map<std::string, std::set<std::vector<int>>> families_;  // the same, by pattern_of
  std::map<std::pair<int, std::vector<int>>, bool> holds_others_;
  std::map<RanksByPart, std::set<std::string>> inferred_;
};

}  // namespace distgrad::dumps
