// Hypotheses that no joint rule of one group can express: a collective whose forward value is right
// but whose backward is that of another call, or goes astray. The program itself is rewritten for
// the replay, mostly with the usual straight-through trick,
//
//   y = z - z.detach() + right.detach()
//
// where `right` is the call as it stands and `z` the call whose backward is supposed to have run.
// As a mutant, the same rewritten program runs on real ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/program.h"
#include "model/run_result.h"

namespace distgrad {

// What a RuleChoice::rule that is no rule of src/rules asks for: "without:2", "group:tp".
struct Rewriting {
  enum class Kind {
    kWithout,     // rank `number` of the world: its cotangent is absent
    kRoot,        // the call with root `number`
    kGroup,       // the call over group `name`; "world" is the world
    kStale,       // the operand's cotangent overwritten by that of step `name`, an earlier one's,
                  // whose backward comes later: a buffer that both calls use
    kOrder,       // the call over its group in another order: "sorted", "world_rank", "world_root"
    kContiguous,  // operand and cotangent made contiguous: changes nothing, for a second run
    kCloned,      // operand and cotangent copied as they lie in memory: likewise
  };
  Kind kind{};
  int number = 0;
  std::string name;
};

// Nothing for the name of a rule.
std::optional<Rewriting> rewriting_named(std::string_view rule);

// The finding that each stands for.
std::string_view finding_of(Rewriting::Kind);

// What it did, as RuleText::happened has it, and the remedy, a sentence.
std::string happened(const Rewriting&);
std::string_view remedy_of(Rewriting::Kind);

// Those that make sense for the step, as the text of a RuleChoice; a group must have other members
// than the step's own somewhere, an order must be another one.
std::vector<std::string> rewritings_of(const Program&, const Step&);

// Applies the choices that are rewritings; gives back the others, which are rules. A choice of a
// step that is not there or takes no such rewriting is an std::invalid_argument. Collective steps
// keep their names and order, but steps are added before them: `added` (if given) has the names of
// those.
std::vector<RuleChoice> rewrite(Program&, const std::vector<RuleChoice>&,
                                std::vector<std::string>* added = nullptr);

}  // namespace distgrad
