// Collects every name of a scenario file: identifiers that are all different and not taken by
// expressions already.
#include <fmt/format.h>

#include <map>

#include "scenario/names.h"
#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

class NameTable {
 public:
  explicit NameTable(Problems& problems) : problems_(problems) {}

  // Takes NAME_rank and NAME_size of a group, too.
  void take_names_of_group(const std::string& group) {
    derived_[group + "_rank"] = group;
    derived_[group + "_size"] = group;
  }

  // Binds a name that was checked elsewhere.
  void take(const JsonValue& member, std::string_view what) {
    bound_.try_emplace(member.key(), Binding{std::string(what), member.key_position().line});
  }

  void bind(const JsonValue& member, std::string_view what) {
    const std::string& name = member.key();
    if (const std::string why = why_not_a_name(name); !why.empty()) {
      problems_.at_key(member, fmt::format("the name {} {}", in_quotes(name), why));
      return;
    }
    if (const auto group = derived_.find(name); group != derived_.end()) {
      problems_.at_key(
          member,
          fmt::format("the name {} is the {} of group {} in every expression; choose another name",
                      in_quotes(name), name.ends_with("_rank") ? "rank" : "size",
                      in_quotes(group->second)));
      return;
    }
    const auto [bound, is_new] =
        bound_.try_emplace(name, Binding{std::string(what), member.key_position().line});
    if (!is_new)
      problems_.at_key(member,
                       fmt::format("the name {} is bound twice: it is {} already, in line {}",
                                   in_quotes(name), bound->second.what, bound->second.line));
  }

 private:
  struct Binding {
    std::string what;
    int line;
  };
  Problems& problems_;
  std::map<std::string, std::string> derived_;  // name -> group
  std::map<std::string, Binding> bound_;
};

std::vector<JsonValue> members(const std::optional<JsonValue>& object) {
  return object && object->is_object() ? object->children() : std::vector<JsonValue>();
}

}  // namespace

void read_names(Parts& parts) {
  NameTable names(parts.problems);
  std::vector<JsonValue> axes = members(parts.key("mesh")), groups = members(parts.key("groups"));
  for (const std::vector<JsonValue>* some : {&axes, &groups})
    for (const JsonValue& group : *some) {
      if (group.key() == "world")
        parts.problems.at_key(
            group, "a group cannot be called \"world\": its size would be called world_size");
      names.take_names_of_group(group.key());
    }
  for (const JsonValue& axis : axes) names.bind(axis, "a mesh axis");
  for (const JsonValue& group : groups) names.bind(group, "a group");
  for (const JsonValue& input : members(parts.key("inputs"))) names.bind(input, "an input");
  if (const auto steps = parts.key("steps"); steps && steps->is_list())
    for (const JsonValue& step : steps->children())
      if (step.is_object() && step.size() == 1) names.bind(step.children().front(), "a step");

  // The steps on one device have a scope of their own, with the inputs in it.
  const auto single = parts.key("single_device");
  const auto steps = single ? single->member("steps") : std::nullopt;
  if (!steps || !steps->is_list()) return;
  NameTable scope(parts.problems);
  for (const std::vector<JsonValue>* some : {&axes, &groups})
    for (const JsonValue& group : *some) scope.take_names_of_group(group.key());
  for (const JsonValue& input : members(parts.key("inputs"))) scope.take(input, "an input");
  for (const JsonValue& step : steps->children())
    if (step.is_object() && step.size() == 1) scope.bind(step.children().front(), "a step");
}

}  // namespace distgrad
