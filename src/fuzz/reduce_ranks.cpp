// Removes ranks, axes and groups, and adapts everything that counts ranks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "fuzz/reductions.h"

namespace distgrad {
namespace {

using Ranks = std::vector<int>;
using Partition = std::vector<Ranks>;

// Returns the partition that a group stands for, as the parser resolves it; listed ones are
// unchanged.
Partition partition_of(const Document& group, int world_size) {
  Partition lists;
  if (group.is_array()) {
    for (const Document& list : group) lists.push_back(list.get<Ranks>());
    return lists;
  }
  const int size = group.value("size", 0), stride = group.value("stride", 0);
  const int count = size > 0 ? world_size / size : stride;
  lists.resize(std::max(count, 1));
  for (int r = 0; r < world_size; ++r)
    lists[std::min<std::size_t>(size > 0 ? r / size : r % std::max(stride, 1), lists.size() - 1)]
        .push_back(r);
  return lists;
}

Partition axis_partition(const Document& mesh, const std::string& axis) {
  int world_size = 1, stride = 1;
  bool after = false;
  for (const auto& [name, size] : mesh.items()) {
    world_size *= size.get<int>();
    if (after) stride *= size.get<int>();
    after = after || name == axis;
  }
  const int size = mesh[axis].get<int>();
  std::map<int, Ranks> lists;
  for (int r = 0; r < world_size; ++r)
    lists[r / (stride * size) * stride + r % stride].push_back(r);
  Partition partition;
  for (auto& [key, ranks] : lists) partition.push_back(std::move(ranks));
  return partition;
}

Ranks range(int n) {
  Ranks ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Removes ranks from a document of one world size.
class Removal {
 public:
  Removal(const Document& document, Ranks removed)
      : document_(document), removed_(std::move(removed)), world_size_(world_size_of(document)) {
    for (int r = 0, next = 0; r < world_size_; ++r) renamed_.push_back(is_removed(r) ? -1 : next++);
  }

  struct RemovalOptions {
    bool keep_rules = true;  // groups by rule stay rules; else they are listed
    bool drop_splits = false;
    bool scale = false;  // multiples of the world's size become as many of the new size
  };

  // `mesh` replaces the file's; it is null if there is none.
  Document apply(const Document& mesh, RemovalOptions options) const {
    Document out = document_;
    if (mesh.is_null())
      out["world_size"] = kept();
    else
      out["mesh"] = mesh;
    if (!mesh.is_null()) drop(out, "world_size");
    for (Document& step : out["steps"])
      if (kind_of(value_of_step(step))) adapt_call(value_of_step(step), options);
    adapt_groups(out, options);
    adapt_lists(out);
    if (out.contains("objective") && out["objective"].is_object() &&
        out["objective"].contains("rank")) {
      const int k = renamed(out["objective"]["rank"].get<int>());
      out["objective"]["rank"] = std::max(k, 0);
    }
    if (options.scale) scale(out);
    return out;
  }

 private:
  int kept() const { return world_size_ - static_cast<int>(removed_.size()); }
  bool is_removed(int rank) const {
    return std::find(removed_.begin(), removed_.end(), rank) != removed_.end();
  }
  int renamed(int rank) const { return rank >= 0 && rank < world_size_ ? renamed_[rank] : -1; }

  Document without(const Document& list) const {
    Document out = Document::array();
    for (std::size_t r = 0; r < list.size(); ++r)
      if (!is_removed(static_cast<int>(r))) out.push_back(list[r]);
    return out;
  }

  // Returns the places within the group that vanish from the first of its lists that loses any.
  Ranks lost_places(const Document& call) const {
    Partition lists = {range(world_size_)};
    if (call.contains("group")) {
      const std::string group = call["group"];
      if (document_.contains("mesh") && document_["mesh"].contains(group))
        lists = axis_partition(document_["mesh"], group);
      else if (document_.contains("groups") && document_["groups"].contains(group))
        lists = partition_of(document_["groups"][group], world_size_);
    }
    for (const Ranks& list : lists) {
      Ranks lost;
      for (std::size_t i = 0; i < list.size(); ++i)
        if (is_removed(list[i])) lost.push_back(static_cast<int>(i));
      if (!lost.empty() && lost.size() < list.size()) return lost;
    }
    return {};
  }

  void adapt_call(Document& call, const RemovalOptions& options) const {
    const Ranks lost = lost_places(call);
    const auto is_lost = [&](int place) {
      return std::find(lost.begin(), lost.end(), place) != lost.end();
    };
    const auto moved = [&](int place) {
      return place - static_cast<int>(
                         std::count_if(lost.begin(), lost.end(), [&](int l) { return l < place; }));
    };
    const auto shorter = [&](const Document& list) {
      Document out = Document::array();
      for (std::size_t i = 0; i < list.size(); ++i)
        if (!is_lost(static_cast<int>(i))) out.push_back(list[i]);
      return out;
    };
    if (options.drop_splits) drop(call, "splits");
    if (call.contains("splits")) {
      Document splits = shorter(call["splits"]);
      for (Document& row : splits)
        if (row.is_array()) row = shorter(row);
      call["splits"] = splits;
    }
    if (call.contains("root")) {
      const int root = call["root"].get<int>();
      call["root"] = is_lost(root) ? 0 : moved(root);
    }
    if (!call.contains("pairs")) return;
    Document pairs = Document::array();
    for (const Document& pair : call["pairs"])
      if (!is_lost(pair[0].get<int>()) && !is_lost(pair[1].get<int>()))
        pairs.push_back({moved(pair[0].get<int>()), moved(pair[1].get<int>())});
    call["pairs"] = pairs;
  }

  void adapt_groups(Document& out, const RemovalOptions& options) const {
    if (!out.contains("groups")) return;
    for (auto& [name, group] : out["groups"].items()) {
      if (group.is_object() && options.keep_rules) continue;
      Document lists = Document::array();
      for (const Ranks& list : partition_of(group, world_size_)) {
        Document left = Document::array();
        for (const int rank : list)
          if (renamed(rank) >= 0) left.push_back(renamed(rank));
        if (!left.empty()) lists.push_back(left);
      }
      group = lists;
    }
  }

  // Adapts lists with one entry a rank.
  void adapt_lists(Document& out) const {
    for (Document& input : out["inputs"])
      if (input.is_object() && input.contains("by_rank"))
        input["by_rank"] = without(input["by_rank"]);
    if (out.contains("truth"))
      for (auto& [name, truth] : out["truth"].items()) {
        const Document& input = out["inputs"].value(name, Document());
        const bool local =
            !input.is_object() || !input.contains("layout") || input["layout"] == "local";
        if (truth.is_array() && local) truth = without(truth);
      }
    if (!out.contains("subjects") || !out["subjects"].is_object()) return;
    for (Document& expected : out["subjects"]) {
      if (expected.is_object()) drop(expected, "gradients");
      if (expected.is_array())
        for (Document& one : expected)
          if (one.is_object()) drop(one, "gradients");
    }
  }

  void scale(Document& out) const {
    for (Document& input : out["inputs"]) {
      if (!input.is_object() || !input.contains("random")) continue;
      for (Document& size : input["random"]["shape"])
        if (size.is_number() && size.get<int>() % world_size_ == 0)
          size = size.get<int>() / world_size_ * kept();
    }
  }

  const Document& document_;
  Ranks removed_;
  int world_size_;
  Ranks renamed_;
};

constexpr Removal::RemovalOptions kRemovalOptions[] = {{},
                                                       {.keep_rules = false},
                                                       {.scale = true},
                                                       {.keep_rules = false, .scale = true},
                                                       {.drop_splits = true},
                                                       {.drop_splits = true, .scale = true}};

void remove_ranks(const Document& document, const Ranks& removed, const Document& mesh,
                  const std::string& what, Reductions& out) {
  const Removal removal(document, removed);
  for (const Removal::RemovalOptions& options : kRemovalOptions) {
    Document candidate = removal.apply(mesh, options);
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const Reduction& r) { return r.document == candidate; });
    if (!known) out.push_back({what, std::move(candidate)});
  }
}

void fewer_ranks(const Document& document, Reductions& out) {
  const int size = world_size_of(document);
  for (int target = 1; target < size; ++target) {
    Ranks removed = range(size);
    removed.erase(removed.begin(), removed.begin() + target);
    remove_ranks(document, removed, nullptr, fmt::format("{} ranks, not {}", target, size), out);
  }
  for (int rank = 0; rank + 1 < size; ++rank)
    remove_ranks(document, {rank}, nullptr, fmt::format("rank {} of {} dropped", rank, size), out);
}

void smaller_axes(const Document& document, Reductions& out) {
  const Document& mesh = document["mesh"];
  for (const auto& [axis, size] : mesh.items()) {
    const Partition lists = axis_partition(mesh, axis);
    for (int target = 1; target < size.get<int>(); ++target) {
      Ranks removed;
      for (const Ranks& list : lists)
        removed.insert(removed.end(), list.begin() + target, list.end());
      Document smaller = mesh;
      smaller[axis] = target;
      remove_ranks(document, removed, smaller,
                   fmt::format("{} ranks along {}, not {}", target, axis, size.get<int>()), out);
    }
  }
}

// Removes an axis from what is by axis. Without a mesh the only word left stands for all.
void drop_axis_from(Document& by_axis, const std::string& axis, bool last) {
  if (!by_axis.is_object() || !by_axis.contains(axis)) return;
  if (last)
    by_axis = Document(by_axis[axis]);
  else
    drop(by_axis, axis);
}

void drop_axis_everywhere(Document& document, const std::string& axis, bool last) {
  for (Document& input : document["inputs"])
    if (input.is_object() && input.contains("layout")) drop_axis_from(input["layout"], axis, last);
  if (document.contains("objective")) drop_axis_from(document["objective"], axis, last);
  if (!document.contains("sync")) return;
  std::vector<std::string> empty;
  for (auto& [input, sync] : document["sync"].items()) {
    drop_axis_from(sync, axis, last);
    if (sync.empty()) empty.push_back(input);
  }
  for (const std::string& input : empty) drop(document["sync"], input);
  if (document["sync"].empty()) drop(document, "sync");
}

// Removes an axis of one rank; its collectives must go first.
void drop_trivial_axes(const Document& document, Reductions& out) {
  for (const auto& [axis, size] : document["mesh"].items()) {
    if (size != 1 || document["mesh"].size() == 1) continue;
    Document candidate = document;
    candidate["mesh"].erase(axis);
    drop_axis_everywhere(candidate, axis, false);
    substitute_name(candidate, axis + "_rank", "0", Reach::kEverywhere);
    substitute_name(candidate, axis + "_size", "1", Reach::kEverywhere);
    for (Document& step : candidate["steps"])
      if (value_of_step(step).is_object() && value_of_step(step).value("group", "") == axis)
        value_of_step(step) =
            value_of_step(step)[std::string(traits(*kind_of(value_of_step(step))).name)];
    out.push_back({"axis " + axis + " dropped", std::move(candidate)});
  }
}

// Turns a mesh of one axis into a world.
void flatten_mesh(const Document& document, Reductions& out) {
  if (document["mesh"].size() != 1) return;
  const std::string axis = document["mesh"].begin().key();
  Document candidate;
  for (const auto& [key, value] : document.items()) {
    if (key == "mesh")
      candidate["world_size"] = value[axis];
    else if (key != "world_size")
      candidate[key] = value;
  }
  drop_axis_everywhere(candidate, axis, true);
  substitute_name(candidate, axis + "_rank", "rank", Reach::kEverywhere);
  substitute_name(candidate, axis + "_size", "world_size", Reach::kEverywhere);
  for (Document& step : candidate["steps"])
    if (value_of_step(step).is_object() && value_of_step(step).value("group", "") == axis)
      drop(value_of_step(step), "group");
  out.push_back({"mesh dropped", std::move(candidate)});
}

// Turns the step's group into the world, or drops a group that no step uses.
void drop_groups(const Document& document, Reductions& out) {
  for (const auto& [name, group] : document["groups"].items()) {
    Document candidate = document;
    candidate["groups"].erase(name);
    if (candidate["groups"].empty()) drop(candidate, "groups");
    substitute_name(candidate, name + "_rank", "rank", Reach::kEverywhere);
    substitute_name(candidate, name + "_size", "world_size", Reach::kEverywhere);
    for (Document& step : candidate["steps"])
      if (value_of_step(step).is_object() && value_of_step(step).value("group", "") == name)
        drop(value_of_step(step), "group");
    out.push_back({"group " + name + " dropped", std::move(candidate)});
  }
}

void choose_one(const Document& document, const char* key, Reductions& out) {
  if (!document.contains(key) || !document[key].is_array()) return;
  for (const Document& item : document[key]) {
    Document candidate = document;
    candidate[key] = item;
    out.push_back({fmt::format("{} {} alone", key, item.dump()), std::move(candidate)});
  }
}

}  // namespace

void reduce_ranks(const Document& document, Reductions& out) {
  for (const char* key : {"world_size", "dtype", "backend"}) choose_one(document, key, out);
  const int size = world_size_of(document);
  if (size == 0) return;  // a choice must be made first
  if (document.contains("mesh")) {
    smaller_axes(document, out);
    drop_trivial_axes(document, out);
    flatten_mesh(document, out);
  } else {
    fewer_ranks(document, out);
  }
  if (document.contains("groups")) drop_groups(document, out);
}

}  // namespace distgrad
