// Removes the other options of the file and its collectives.
#include <fmt/format.h>

#include "fuzz/reductions.h"

namespace distgrad {
namespace {

void add_without(const Document& document, const Place& object, const std::string& key,
                 Reductions& out) {
  Document candidate = document;
  if (!drop(candidate[object], key)) return;
  if (candidate[object].empty() && object.back() != "steps") {
    const std::string name = object.back();
    candidate[object.parent_pointer()].erase(name);
  }
  out.push_back({key + " dropped", std::move(candidate)});
}

void add_with(const Document& document, const Place& place, const Document& value,
              const std::string& what, Reductions& out) {
  if (document[place] == value) return;
  Document candidate = document;
  candidate[place] = value;
  out.push_back({what, std::move(candidate)});
}

void reduce_call(const Document& document, const Place& place, Reductions& out) {
  const Document& call = document[place];
  const std::string step = place.back();
  const auto without = [&](const char* key) {
    Document candidate = document;
    Document& reduced = candidate[place];
    if (!drop(reduced, key)) return;
    if (std::string(key) == "op") drop(reduced, "factor");
    out.push_back({fmt::format("{} of {} dropped", key, step), std::move(candidate)});
  };
  for (const char* key : {"group", "op", "root", "dim", "splits"}) without(key);
  for (const char* key : {"root", "dim", "factor"})
    if (call.contains(key))
      for (const int simple : {0, 1, 2})
        add_with(document, place / key, simple, fmt::format("{} of {}: {}", key, step, simple),
                 out);
  if (!call.contains("pairs")) return;
  for (std::size_t i = 0; i < call["pairs"].size(); ++i) {
    Document candidate = document;
    candidate[place / "pairs"].erase(i);
    out.push_back({"a pair of " + step + " dropped", std::move(candidate)});
  }
}

void reduce_sync(const Document& document, Reductions& out) {
  if (!document.contains("sync")) return;
  for (const auto& [input, sync] : document["sync"].items()) {
    add_without(document, Place("/sync"), input, out);
    const Place place = Place("/sync") / input;
    if (!sync.is_object()) continue;
    for (const auto& [axis, how] : sync.items()) add_without(document, place, axis, out);
  }
}

void reduce_objective(const Document& document, Reductions& out) {
  for (const char* word : {"sum", "mean", "replicated"})
    add_with(document, Place("/objective"), word, std::string("objective ") + word, out);
  if (!document["objective"].is_object()) return;
  for (const auto& [axis, word] : document["objective"].items())
    for (const char* simple : {"sum", "mean"})
      if (word.is_string())
        add_with(document, Place("/objective") / axis, simple,
                 fmt::format("objective along {} {}", axis, simple), out);
}

// Keeps one subject, with plain words for what is expected.
void reduce_subjects(const Document& document, Reductions& out) {
  if (!document.contains("subjects") || !document["subjects"].is_object()) return;
  for (const auto& [subject, expected] : document["subjects"].items()) {
    if (document["subjects"].size() > 1) {
      Document candidate = document;
      candidate["subjects"] = {{subject, expected}};
      out.push_back({"subject " + subject + " alone", std::move(candidate)});
    }
    const Place place = Place("/subjects") / subject;
    if (expected.is_array())
      for (const Document& one : expected) add_with(document, place, one, "one expectation", out);
    if (!expected.is_object()) continue;
    add_with(document, place, "match", "expectation of " + subject, out);
    for (const auto& [key, value] : expected.items())
      if (key != "verdict") add_without(document, place, key, out);
  }
}

}  // namespace

void reduce_options(const Document& document, Reductions& out) {
  for (const char* key : {"note", "name", "format", "truth", "single_device", "tolerance",
                          "timeout_s", "dtype", "backend", "sync", "subjects"})
    add_without(document, Place(""), key, out);
  reduce_subjects(document, out);
  if (document.contains("truth"))
    for (const auto& [input, value] : document["truth"].items())
      add_without(document, Place("/truth"), input, out);
  reduce_sync(document, out);
  reduce_objective(document, out);
  for (std::size_t i = 0; i < document["steps"].size(); ++i) {
    const Document& step = document["steps"][i];
    if (kind_of(value_of_step(step)))
      reduce_call(document, Place("/steps") / i / name_of_step(step), out);
  }
}

}  // namespace distgrad
