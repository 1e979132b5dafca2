#include "base/version.h"
#include "dumps/comparison_report.h"
#include "dumps/patterns.h"
#include "model/values_json.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

Json worst_json(const std::optional<WorstElement>& worst) {
  if (!worst) return nullptr;
  return {{"ranks", worst->ranks},
          {"index", worst->index},
          {"observed", number_json(worst->observed)},
          {"reference", number_json(worst->expected)}};
}

Json parameter_json(const ParameterResult& r) {
  Json placements = Json::object();
  for (const auto& [axis, placement] : r.placements) placements[axis] = placement;
  return {{"name", r.name},
          {"verdict", row_of(r.explanation).name},
          {"finding", r.finding.empty() ? Json(nullptr) : Json(r.finding.text())},
          {"right", r.is_right()},
          {"forgiven", r.is_forgiven},
          {"text", r.is_right() && r.headline.empty() ? std::string("right") : r.headline},
          {"factor", r.factor ? number_json(*r.factor) : Json(nullptr)},
          {"ranks", r.ranks},
          {"axis", r.axis.empty() ? Json(nullptr) : Json(r.axis)},
          {"shape", r.shape},
          {"dtype", traits(r.dtype).name},
          {"placements", std::move(placements)},
          {"bitwise", r.bitwise},
          {"rtol", r.rtol},
          {"max_abs_error", number_json(r.max_abs_error)},
          {"relative_error", number_json(r.relative_error)},
          {"worst", worst_json(r.worst)},
          {"notes", r.notes}};
}

Json group_json(const ResultGroup& g) {
  Json names = Json::array();
  for (const ParameterResult* r : g.members) names.push_back(r->name);
  const ParameterResult& first = *g.members.front();
  return {{"verdict", row_of(first.explanation).name},
          {"finding", first.finding.empty() ? Json(nullptr) : Json(first.finding.text())},
          {"text", g.headline},
          {"patterns", g.patterns},
          {"common", g.common.empty() ? Json(nullptr) : Json(g.common)},
          {"parameters", std::move(names)}};
}

}  // namespace

Json comparison_json(const DumpComparison& c) {
  Json mesh = Json::object();
  for (const DumpAxis& axis : c.mesh) mesh[axis.name] = axis.size;
  Json parameters = Json::array(), groups = Json::array();
  int right = 0, forgiven = 0;
  for (const ParameterResult& r : c.parameters) {
    right += r.is_right() ? 1 : 0;
    forgiven += r.is_forgiven ? 1 : 0;
    parameters.push_back(parameter_json(r));
  }
  for (const ResultGroup& g : groups_of(c.parameters)) groups.push_back(group_json(g));
  const int total = static_cast<int>(c.parameters.size());
  return {{"format", 1},
          {"kind", "gradient-comparison"},
          {"tool", {{"name", "distgrad"}, {"version", kVersion}}},
          {"reference", c.reference},
          {"observed", c.observed},
          {"world_size", c.world_size == 0 ? Json(nullptr) : Json(c.world_size)},
          {"mesh", std::move(mesh)},
          {"absent_ranks", c.absent_ranks},
          {"summary",
           {{"parameters", total},
            {"right", right},
            {"near", forgiven},
            {"not_right", total - right - forgiven}}},
          {"vacuous", c.vacuous.empty() ? Json(nullptr) : Json(c.vacuous)},
          {"groups", std::move(groups)},
          {"parameters", std::move(parameters)},
          {"notes", c.notes}};
}

}  // namespace distgrad::dumps
