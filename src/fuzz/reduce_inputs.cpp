// Removes inputs and simplifies layouts.
#include <fmt/format.h>

#include "fuzz/input_values.h"
#include "fuzz/reductions.h"

namespace distgrad {
namespace {

void drop_input(const Document& document, const std::string& name, Reductions& out) {
  const auto without = [&](const std::string& by, const std::string& what) {
    Document candidate = document;
    substitute_name(candidate, name, by);
    candidate["inputs"].erase(name);
    if (candidate.contains("single_device") && uses_name(candidate, name))
      drop(candidate, "single_device");
    for (const char* key : {"truth", "sync"})
      if (candidate.contains(key)) {
        drop(candidate[key], name);
        if (candidate[key].empty()) drop(candidate, key);
      }
    out.push_back({"input " + name + " dropped" + what, std::move(candidate)});
  };
  if (!uses_name(document, name)) return without("0", "");
  without("1.0", ": 1 in its place");
  without("0.0", ": 0 in its place");
  for (const auto& [other, value] : document["inputs"].items())
    if (other != name) without(other, ": " + other + " in its place");
}

void reduce_layout(const Document& document, const std::string& name, Reductions& out) {
  const Place place = Place("/inputs") / name / "layout";
  const Document& layout = document[place];
  const auto with = [&](const Document& word, const std::string& what) {
    Document candidate = document;
    if (word.is_null())
      drop(candidate[place.parent_pointer()], "layout");
    else
      candidate[place] = word;
    if (word.is_null() && candidate.contains("sync")) {
      drop(candidate["sync"], name);
      if (candidate["sync"].empty()) drop(candidate, "sync");
    }
    out.push_back({fmt::format("layout of {}: {}", name, what), std::move(candidate)});
  };
  with(nullptr, "local");
  if (layout != "replicate") with("replicate", "replicate");
  if (!layout.is_object() || layout.contains("shard")) return;
  for (const auto& [axis, word] : layout.items()) {
    if (word == "replicate") continue;
    Document simpler = layout;
    simpler[axis] = "replicate";
    with(simpler, "replicate along " + axis);
  }
}

}  // namespace

void reduce_inputs(const Document& document, Reductions& out) {
  for (const auto& [name, input] : document["inputs"].items()) drop_input(document, name, out);
  for (const auto& [name, input] : document["inputs"].items())
    if (input.is_object() && input.contains("layout")) reduce_layout(document, name, out);
  reduce_shapes(document, out);
  reduce_values(document, out);
}

}  // namespace distgrad
