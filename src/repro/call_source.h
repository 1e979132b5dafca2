// What the Python sources of the collectives share: one call with its options written into the
// text. Internal to this folder.
//
// Sources have these words for what depends on the call: `$group_arg` (", group=group" or nothing
// in the world), `$group` ("group"), `$size` and `$rank` (of the group), `$to` and `$from` ("dst=1"
// or "group=group, group_dst=1"), `$dim`, `$root`, `$splits`, `$pairs`, `$factor`, `$op`
// ("dist.ReduceOp.SUM").
#pragma once

#include <string>

#include "model/program.h"

namespace distgrad {

struct CallSource {
  const CollectiveCall* spec = nullptr;
  bool is_uneven = false;  // operands that differ in size along `dim` between ranks of a group

  bool has_group() const { return !spec->group.empty(); }
};

// The words filled in.
std::string filled(const CallSource&, std::string source);

// Lines of Python, each ended. `x` is the operand.
struct CollectiveSource {
  CollectiveKind kind{};
  // `xs` is the list of the group's operands; returns the list of the results. One autograd graph.
  std::string (*simulation)(const CallSource&);
  std::string (*forward)(const CallSource&);  // sets `y`, for real and without autograd
  std::string (*adjoint)(
      const CallSource&);  // sets `dx` from `g`, the cotangent, and what it needs of x and y
  std::string (*in_place)(const CallSource&);  // sets `y`, as a user calls torch.distributed
};

const CollectiveSource& source_of(CollectiveKind);

// Sets `dx` by the rule (model/libraries.h); empty where there is no source for it.
std::string backward_source(const CallSource&, const std::string& rule);

// The helper functions that the sources call by name: their own source; empty: none of that name.
struct HelperSource {
  const char* name;
  const char* source;
};
extern const HelperSource kHelpers[9];

// Shared by the rows.
std::string all_reduce_source(const CallSource&, const std::string& in, const std::string& out);
std::string reduction_adjoint_source(const CallSource&);
std::string gathered_source(const CallSource&, const std::string& what, const std::string& parts);
std::string joined_source(const CallSource&, const std::string& parts);
std::string own_piece_source(const CallSource&);
std::string chunks_source(const CallSource&, const std::string& what);

}  // namespace distgrad
