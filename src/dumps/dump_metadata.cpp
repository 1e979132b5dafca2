#include "dumps/dump_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/pattern.h"
#include "dumps/boxes.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

class MetadataReader {
 public:
  explicit MetadataReader(RankDump& dump) : dump_(dump), shown_(for_terminal(dump.file)) {}

  void read(const Json& metadata) {
    const auto field = [&](const char* key) {
      const auto found = metadata.find(key);
      return found == metadata.end() || found->is_null() ? nullptr : &*found;
    };
    if (const Json* format = field("format"); format && *format != 1)
      refuse("written for a later version of distgrad");
    if (const Json* rank = field("rank")) dump_.rank = count(*rank, "rank", 0);
    if (const Json* size = field("world_size")) dump_.world_size = count(*size, "world_size", 1);
    if (dump_.world_size && dump_.rank >= *dump_.world_size)
      refuse("rank {} of {} ranks", dump_.rank, *dump_.world_size);
    if (const Json* meshes = field("meshes")) read_meshes(*meshes);
    if (const Json* groups = field("groups")) read_groups(*groups);
    if (const Json* counts = field("counts")) read_counts(*counts);
    if (const Json* digest = field("local")) dump_.local_digest = text(*digest, "local");
    if (const Json* parameters = field("parameters")) read_parameters(*parameters);
    // The layouts of parameters, which are read by now, do not mean this one.
    if (const Json* world = field("mesh")) read_world(*world);
    // A dict that a script filled may lack parameters without a gradient; a model lacks those
    // elsewhere.
    if (const Json* listing = field("listing"))
      dump_.lists_all = dump_.lists_all && text(*listing, "listing") != "given";
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError(shown_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  int count(const Json& value, const std::string& what, int least) const {
    if (!value.is_number_integer() || value < least || value > kMostRanks)
      refuse("metadata: {} is not a number from {} to {}", what, least, kMostRanks);
    return value.get<int>();
  }

  std::string text(const Json& value, const char* what) const {
    if (!value.is_string()) refuse("metadata: {} is not text", what);
    return value.get<std::string>();
  }

  void read_groups(const Json& groups) {
    if (!groups.is_array()) refuse("metadata: groups is not a list");
    for (const Json& value : groups) {
      if (!value.is_object() || !value.contains("ranks") || !value["ranks"].is_array())
        refuse("metadata: a group needs ranks");
      DumpGroup& group = dump_.groups.emplace_back();
      if (value.contains("name")) group.name = for_terminal(text(value["name"], "a group's name"));
      for (const Json& rank : value["ranks"])
        group.ranks.push_back(count(rank, "a rank of a group", 0));
    }
  }

  void read_counts(const Json& counts) {
    if (!counts.is_object()) refuse("metadata: counts is not an object");
    for (const auto& [name, value] : counts.items())
      dump_.counts.push_back({for_terminal(name), count(value, "a count", 0)});
  }

  void read_meshes(const Json& meshes) {
    if (!meshes.is_array()) refuse("metadata: meshes is not a list");
    for (const Json& value : meshes) {
      if (!value.is_object() || !value.contains("axes") || !value["axes"].is_object() ||
          !value.contains("ranks") || !value["ranks"].is_array())
        refuse("metadata: a mesh needs axes and ranks");
      DumpMesh mesh;
      const std::int64_t size = read_axes(value["axes"], mesh);
      for (const Json& rank : value["ranks"])
        mesh.ranks.push_back(count(rank, "a rank of a mesh", 0));
      const std::set<int> distinct(mesh.ranks.begin(), mesh.ranks.end());
      if (static_cast<std::int64_t>(mesh.ranks.size()) != size ||
          distinct.size() != mesh.ranks.size())
        refuse("metadata: the ranks of a mesh are not as many as its axes say, each once");
      dump_.meshes.push_back(std::move(mesh));
    }
  }

  // Returns how many ranks there are on the mesh.
  std::int64_t read_axes(const Json& axes, DumpMesh& mesh) const {
    std::int64_t size = 1;
    for (const auto& [name, extent] : axes.items()) {
      mesh.axes.push_back({for_terminal(name), count(extent, "the size of an axis", 1)});
      size *= mesh.axes.back().size;
      if (size > kMostRanks) refuse("metadata: a mesh of more than {} ranks", kMostRanks);
    }
    return size;
  }

  void read_world(const Json& axes) {
    if (!axes.is_object()) refuse("metadata: mesh is not an object");
    if (axes.empty()) return;
    DumpMesh mesh;
    const auto size = static_cast<int>(read_axes(axes, mesh));
    if (size != dump_.world_size.value_or(size))
      refuse("metadata: a mesh of {} ranks, and world_size {}", size, *dump_.world_size);
    mesh.ranks.resize(static_cast<std::size_t>(size));
    std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
    dump_.meshes.push_back(std::move(mesh));
  }

  void read_parameters(const Json& parameters) {
    if (!parameters.is_object()) refuse("metadata: parameters is not an object");
    dump_.lists_all = true;
    int position = 0;
    for (const auto& [name, value] : parameters.items()) {
      const std::string shown = for_terminal(name);
      if (!value.is_object()) refuse("metadata: {} is not an object", shown);
      DumpGradient& gradient = dump_.gradients[name];
      gradient.position = position++;
      gradient.elsewhere = value.contains("elsewhere");
      if (value.contains("placements")) gradient.layout = read_layout(value, shown);
      check_shape(gradient, shown);
    }
  }

  DumpLayout read_layout(const Json& value, const std::string& name) const {
    DumpLayout layout;
    layout.full_shape = read_shape(value, name);
    const Json mesh = value.value("mesh", Json(0u));
    if (!mesh.is_number_unsigned() || mesh >= dump_.meshes.size())
      refuse("metadata: {} has no mesh", name);
    layout.mesh = mesh.get<std::size_t>();
    const DumpMesh& axes = dump_.meshes[layout.mesh];
    const Json& placements = value["placements"];
    if (!placements.is_object() || placements.size() != axes.axes.size())
      refuse("metadata: {} needs a placement for each axis of its mesh", name);
    for (const DumpAxis& axis : axes.axes) {
      const auto found = placements.find(axis.name);
      if (found == placements.end() || !found->is_string())
        refuse("metadata: {} has no placement along {}", name, axis.name);
      layout.placements.push_back(read_placement(found->get<std::string>(), name));
      const DumpPlacement& placement = layout.placements.back();
      if (placement.kind == DumpPlacement::Kind::kShard &&
          placement.dim >= static_cast<int>(layout.full_shape.size()))
        refuse("metadata: {} is cut along dimension {}, which it does not have", name,
               placement.dim);
    }
    if (std::find(axes.ranks.begin(), axes.ranks.end(), dump_.rank) == axes.ranks.end())
      refuse("metadata: rank {} is not on the mesh of {}", dump_.rank, name);
    return layout;
  }

  Shape read_shape(const Json& value, const std::string& name) const {
    if (!value.contains("shape") || !value["shape"].is_array())
      refuse("metadata: {} has no shape", name);
    Shape shape;
    std::int64_t size = 1;
    for (const Json& extent : value["shape"]) {
      if (!extent.is_number_unsigned() || extent > INT64_MAX)
        refuse("metadata: {}: bad shape", name);
      shape.push_back(extent.get<std::int64_t>());
      if (shape.back() != 0 && __builtin_mul_overflow(size, shape.back(), &size))
        refuse("metadata: {}: bad shape", name);
    }
    return shape;
  }

  DumpPlacement read_placement(const std::string& text, const std::string& name) const {
    static const Pattern pattern(
        R"(^(Replicate(\(\))?|Shard\((dim=)?([0-9]{1,4})\)|_StridedShard\(dim=([0-9]{1,4}), )"
        R"(sf=([0-9]{1,6})\)|Partial\(([a-z]{1,20})\))$)");
    const std::vector<std::string> match = pattern.find(text);
    if (match.empty())
      refuse("metadata: {}: \"{}\" is no placement", name, for_terminal(text.substr(0, 60)));
    const std::string &shard = match[4], &strided = match[5], &factor = match[6], &op = match[7];
    DumpPlacement placement;
    if (!shard.empty() || !strided.empty()) {
      placement.kind = DumpPlacement::Kind::kShard;
      placement.dim = std::stoi(strided.empty() ? shard : strided);
      if (!factor.empty()) placement.split_factor = std::max(1, std::stoi(factor));
    } else if (!op.empty()) {
      placement.kind = DumpPlacement::Kind::kPartial;
      placement.op = op;
    }
    return placement;
  }

  // Checks the size, since pieces are joined by what the layout says and would be read beyond their
  // end.
  void check_shape(const DumpGradient& gradient, const std::string& name) const {
    if (!gradient.tensor || !gradient.layout) return;
    const DumpMesh& mesh = dump_.meshes[gradient.layout->mesh];
    const std::optional<Box> box = placed_box(*gradient.layout, mesh, dump_.rank);
    if (!box) refuse("metadata: the placements of {} cannot be understood", name);
    if (box->extent != gradient.tensor->shape)
      refuse("{} has shape [{}], its placements make [{}]", name,
             fmt::join(gradient.tensor->shape, ", "), fmt::join(box->extent, ", "));
  }

  static constexpr int kMostRanks = 1'000'000;
  RankDump& dump_;
  std::string shown_;
};

}  // namespace

void apply_metadata(const Json& metadata, RankDump& dump) { MetadataReader(dump).read(metadata); }

}  // namespace distgrad::dumps
