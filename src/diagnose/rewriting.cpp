#include "diagnose/rewriting.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "diagnose/reach.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

constexpr int kMostMembers = 8;  // of whose cotangents each in turn is left out
constexpr std::string_view kWorld = "world";

struct Family {
  std::string_view prefix;
  Rewriting::Kind kind;
  std::string_view finding;
  std::string_view remedy;
};
constexpr Family kFamilies[] = {
    {"without:", Rewriting::Kind::kWithout, "missing-reduction",
     "Look for a detach, a no_grad or a branch on that rank between the collective and the loss."},
    {"root:", Rewriting::Kind::kRoot, "wrong-slice",
     "Use the root of the forward call in backward, too."},
    {"group:", Rewriting::Kind::kGroup, "wrong-group",
     "Hand the group of the forward call to the collective in backward, too."},
    {"order:", Rewriting::Kind::kOrder, "group-rank",
     "Count by the rank within the group, in the order in which the group lists its ranks: "
     "torch.distributed.get_group_rank gives it."},
    {"stale:", Rewriting::Kind::kStale, "stale-or-aliased",
     "Give every call a buffer of its own, or clone what is returned from one that is kept."},
    {"contiguous:", Rewriting::Kind::kContiguous, "contiguity",
     "Call .contiguous() on operand and cotangent before they go to the collective."},
    {"cloned:", Rewriting::Kind::kCloned, "stale-or-aliased",
     "Clone the cotangent before it is written to, and give every call memory of its own."},
};

using Partition = std::vector<std::vector<int>>;

Partition the_world(const Program& program) {
  Partition partition(1);
  partition[0].resize(static_cast<std::size_t>(program.world_size));
  std::iota(partition[0].begin(), partition[0].end(), 0);
  return partition;
}

Partition partition_of(const Program& program, const std::string& group) {
  const Group* found = group.empty() ? nullptr : program.group_named(group);
  return found ? found->partition : the_world(program);
}

bool moves_data(const CollectiveCall& call) { return call.kind != kCopy && call.kind != kSlice; }
bool counts_root_alone(const CollectiveCall& call) {
  return call.kind == kReduce || call.kind == kGather;
}
bool takes_root(const CollectiveCall& call) { return traits(call.kind).takes_root; }

// By which members are grouped, whatever their order.
std::set<std::set<int>> members(const Partition& partition) {
  std::set<std::set<int>> all;
  for (const auto& list : partition) all.insert(std::set<int>(list.begin(), list.end()));
  return all;
}

// Each rank at the place that its rank in the world, modulo the group's size, names.
std::optional<std::vector<int>> by_world_rank(const std::vector<int>& list) {
  std::vector<int> placed(list.size(), -1);
  for (const int rank : list) {
    int& place = placed[static_cast<std::size_t>(rank) % list.size()];
    if (place >= 0) return std::nullopt;
    place = rank;
  }
  return placed;
}

// The rank of the world that `root` names put where the root is; as it was where that is no member.
std::vector<int> with_world_root(std::vector<int> list, int root) {
  const auto at = std::find(list.begin(), list.end(), root);
  if (at != list.end() && root < static_cast<int>(list.size()))
    std::swap(*at, list[static_cast<std::size_t>(root)]);
  return list;
}

Partition reordered(const Partition& partition, const std::string& order, int root) {
  Partition result;
  for (const auto& list : partition) {
    std::vector<int> moved = list;
    if (order == "sorted") std::sort(moved.begin(), moved.end());
    if (order == "world_rank") moved = by_world_rank(list).value_or(list);
    if (order == "world_root") moved = with_world_root(list, root);
    result.push_back(std::move(moved));
  }
  return result;
}

bool is_taken(const Program& program, const std::string& name) {
  const auto named = [&](const auto& thing) { return thing.name == name; };
  return std::any_of(program.steps.begin(), program.steps.end(), named) ||
         std::any_of(program.inputs.begin(), program.inputs.end(), named) ||
         std::any_of(program.groups.begin(), program.groups.end(), named);
}

std::string unused_name(const Program& program, const std::string& like) {
  for (int i = 1;; ++i)
    if (std::string name = fmt::format("{}_{}", like, i); !is_taken(program, name)) return name;
}

// Renames the step and puts others behind it, of which the last has its name.
class StepRewriter {
 public:
  StepRewriter(Program& program, std::size_t index, std::vector<std::string>* added)
      : program_(program),
        index_(index),
        added_(added),
        name_(program.steps[index].name),
        pointer_(program.steps[index].pointer) {}

  const CollectiveCall& call() const { return *program_.steps[index_].collective(); }

  void drop(int rank) {
    const std::string whole = rename();
    insert(name_,
           Expression{fmt::format("{0}.detach() if rank == {1} else {0}", whole, rank), pointer_});
  }

  // A reshape copies what is not in order, and a product makes new memory of what overlaps itself.
  void make_contiguous() {
    Expression& operand = std::get<CollectiveCall>(program_.steps[index_].what).operand;
    operand.text = fmt::format("({}).contiguous()", operand.text);
    const std::string right = rename();
    insert(name_,
           Expression{fmt::format("({0}.reshape([-1]) * 1).reshape({0}.size())", right), pointer_});
  }

  // A product makes new memory of the same strides, forward and backward.
  void clone() {
    Expression& operand = std::get<CollectiveCall>(program_.steps[index_].what).operand;
    operand.text = fmt::format("({}) * 1", operand.text);
    const std::string right = rename();
    insert(name_, Expression{fmt::format("{} * 1", right), pointer_});
  }

  // Nothing comes back through the call. Its operand gets what the other's gets, to which it is
  // added as an exact 0; one of another size shares no buffer, and makes the program invalid.
  void lose_to(const std::string& other) {
    const std::string own = call().operand.text;
    const std::string whole = rename();
    insert(name_, Expression{fmt::format("{}.detach()", whole), pointer_});
    for (Step& step : program_.steps)
      if (auto* theirs = std::get_if<CollectiveCall>(&step.what); theirs && step.name == other)
        theirs->operand.text = fmt::format("({0}) + (({1}) - ({1}).detach()).reshape(({0}).size())",
                                           theirs->operand.text, own);
  }

  void straight_through(CollectiveCall supposed) {
    const std::string right = rename();
    const std::string other = unused_name(program_, name_);
    insert(other, std::move(supposed));
    insert(name_,
           Expression{fmt::format("{0} - {0}.detach() + {1}.detach()", other, right), pointer_});
  }

 private:
  std::string rename() {
    std::string fresh = unused_name(program_, name_);
    program_.steps[index_].name = fresh;
    if (added_) added_->push_back(fresh);
    return fresh;
  }

  void insert(const std::string& name, decltype(Step::what) what) {
    ++index_;
    program_.steps.insert(program_.steps.begin() + static_cast<std::ptrdiff_t>(index_),
                          Step{name, pointer_, std::move(what)});
    if (added_ && name != name_) added_->push_back(name);
  }

  Program& program_;
  std::size_t index_;
  std::vector<std::string>* added_;
  std::string name_, pointer_;
};

void apply(Program& program, const std::string& step, const Rewriting& how,
           std::vector<std::string>* added) {
  const auto found = std::find_if(program.steps.begin(), program.steps.end(),
                                  [&](const Step& s) { return s.name == step && s.collective(); });
  if (found == program.steps.end()) throw std::invalid_argument("no collective step " + step);
  StepRewriter rewriter(program, static_cast<std::size_t>(found - program.steps.begin()), added);
  CollectiveCall supposed = rewriter.call();
  switch (how.kind) {
    case Rewriting::Kind::kWithout:
      return rewriter.drop(how.number);
    case Rewriting::Kind::kContiguous:
      return rewriter.make_contiguous();
    case Rewriting::Kind::kCloned:
      return rewriter.clone();
    case Rewriting::Kind::kStale:
      return rewriter.lose_to(how.name);
    case Rewriting::Kind::kRoot:
      supposed.root = how.number;
      break;
    case Rewriting::Kind::kGroup:
      supposed.group = how.name == kWorld ? "" : how.name;
      break;
    case Rewriting::Kind::kOrder: {
      Group other{unused_name(program, supposed.group), {}, false};
      other.partition = reordered(partition_of(program, supposed.group), how.name, supposed.root);
      supposed.group = other.name;
      program.groups.push_back(std::move(other));
      break;
    }
  }
  rewriter.straight_through(std::move(supposed));
}

std::size_t largest_group(const Partition& partition) {
  std::size_t largest = 0;
  for (const auto& list : partition) largest = std::max(largest, list.size());
  return largest;
}

std::size_t smallest_group(const Partition& partition) {
  std::size_t smallest = partition.empty() ? 0 : partition[0].size();
  for (const auto& list : partition) smallest = std::min(smallest, list.size());
  return smallest;
}

// What counts within the group must exist there.
bool fits(const CollectiveCall& call, const Partition& partition) {
  const auto smallest = static_cast<int>(smallest_group(partition));
  if (call.root >= smallest) return false;
  for (const auto& [source, to] : call.pairs)
    if (source >= smallest || to >= smallest) return false;
  if (call.splits.empty()) return true;
  const std::size_t cuts = call.splits[0].size();
  return std::all_of(partition.begin(), partition.end(),
                     [&](const auto& list) { return list.size() == cuts; });
}

void add_groups(const Program& program, const CollectiveCall& call, std::vector<std::string>& all) {
  std::set<std::set<std::set<int>>> known = {members(partition_of(program, call.group))};
  const auto propose = [&](std::string_view name, const Partition& partition) {
    if (known.insert(members(partition)).second && fits(call, partition))
      all.push_back(fmt::format("group:{}", name));
  };
  propose(kWorld, the_world(program));
  for (const Group& group : program.groups) propose(group.name, group.partition);
}

void add_orders(const Program& program, const CollectiveCall& call, std::vector<std::string>& all) {
  if (call.group.empty()) return;
  const Partition own = partition_of(program, call.group);
  std::set<Partition> known = {own};
  for (const std::string order : {"sorted", "world_rank", "world_root"}) {
    if (order == "world_root" && !takes_root(call)) continue;
    if (known.insert(reordered(own, order, call.root)).second) all.push_back("order:" + order);
  }
}

// Whether no step from `place` on is named in the text.
bool names_are_bound_before(const Program& program, const std::string& text, const Step& place) {
  bool is_before = true;
  const std::set<std::string> names = names_in(text);
  for (const Step& step : program.steps) {
    is_before = is_before && &step != &place;
    if (!is_before && names.contains(step.name)) return false;
  }
  return true;
}

// Calls of the same kind before the step, whose backward comes after its own, and which know the
// operand by then: names are bound before they are used.
void add_stale(const Program& program, const Step& step, std::vector<std::string>& all) {
  for (const Step& other : program.steps) {
    if (&other == &step) break;
    if (other.collective() && other.collective()->kind == step.collective()->kind &&
        names_are_bound_before(program, step.collective()->operand.text, other))
      all.push_back("stale:" + other.name);
  }
}

}  // namespace

std::optional<Rewriting> rewriting_named(std::string_view rule) {
  for (const Family& family : kFamilies) {
    if (!rule.starts_with(family.prefix)) continue;
    Rewriting rewriting{family.kind, 0, std::string(rule.substr(family.prefix.size()))};
    if (family.kind == Rewriting::Kind::kWithout || family.kind == Rewriting::Kind::kRoot)
      rewriting.number = std::stoi(rewriting.name);
    return rewriting;
  }
  return std::nullopt;
}

std::string_view finding_of(Rewriting::Kind kind) {
  for (const Family& family : kFamilies)
    if (family.kind == kind) return family.finding;
  return "";
}

std::string happened(const Rewriting& how) {
  switch (how.kind) {
    case Rewriting::Kind::kWithout:
      return fmt::format("lacks the cotangent of rank {}.", how.number);
    case Rewriting::Kind::kRoot:
      return fmt::format("took rank {} of the group for the root.", how.number);
    case Rewriting::Kind::kGroup:
      return how.name == kWorld
                 ? "ran over the whole world instead of the call's own group."
                 : fmt::format("ran over the group {} instead of the call's own.", how.name);
    case Rewriting::Kind::kStale:
      return fmt::format(
          "gave its operand what the backward of step {} gives that one's, as where both write "
          "into "
          "one buffer.",
          how.name);
    case Rewriting::Kind::kContiguous:
      return "is right for a contiguous operand and cotangent.";
    case Rewriting::Kind::kCloned:
      return "is right where nobody shares the memory of operand and cotangent.";
    case Rewriting::Kind::kOrder:
      break;
  }
  if (how.name == "sorted")
    return "counted the group's ranks in ascending order, which is not the group's own.";
  if (how.name == "world_root")
    return "took the root for a rank of the world; it counts within the group.";
  return "took ranks of the world for ranks within the group.";
}

std::string_view remedy_of(Rewriting::Kind kind) {
  for (const Family& family : kFamilies)
    if (family.kind == kind) return family.remedy;
  return "";
}

std::vector<std::string> rewritings_of(const Program& program, const Step& step) {
  std::vector<std::string> all;
  const CollectiveCall* call = step.collective();
  if (!call || !moves_data(*call)) return all;
  const Partition partition = partition_of(program, call->group);
  if (largest_group(partition) < 2) {
    add_groups(program, *call, all);  // it may have run over a larger one
    return all;
  }
  if (takes_root(*call))
    for (int root = 0;
         root < static_cast<int>(std::min<std::size_t>(smallest_group(partition), kMostMembers));
         ++root)
      if (root != call->root) all.push_back(fmt::format("root:{}", root));
  add_orders(program, *call, all);
  add_groups(program, *call, all);
  if (!counts_root_alone(*call) && program.world_size <= kMostMembers)
    for (const auto& list : partition)
      if (list.size() > 1)
        for (const int rank : list) all.push_back(fmt::format("without:{}", rank));
  add_stale(program, step, all);
  return all;
}

std::vector<RuleChoice> rewrite(Program& program, const std::vector<RuleChoice>& choices,
                                std::vector<std::string>* added) {
  std::vector<RuleChoice> rules;
  for (const RuleChoice& choice : choices) {
    if (const auto how = rewriting_named(choice.rule)) {
      apply(program, choice.step, *how, added);
    } else {
      rules.push_back(choice);
    }
  }
  return rules;
}

}  // namespace distgrad
