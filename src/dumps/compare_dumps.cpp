#include "dumps/compare_dumps.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "dumps/patterns.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

std::set<std::string> names_in(const Dump& dump) {
  std::set<std::string> names;
  for (const RankDump& rank : dump.ranks)
    for (const auto& [name, gradient] : rank.gradients) names.insert(name);
  return names;
}

void check_common_names(const Dump& reference, const Dump& observed) {
  const std::set<std::string> a = names_in(reference), b = names_in(observed);
  const bool common =
      std::any_of(a.begin(), a.end(), [&](const std::string& name) { return b.count(name) > 0; });
  if (common || a.empty() || b.empty()) return;
  throw UserError(fmt::format("{} and {} have no parameter in common: \"{}\" there, \"{}\" here",
                              for_terminal(reference.path), for_terminal(observed.path),
                              for_terminal(*a.begin()), for_terminal(*b.begin())));
}

int preference(Explanation e) {
  if (e == Explanation::kRight) return 0;
  return e == Explanation::kUnexplained || e == Explanation::kUnsynchronised ? 2 : 1;
}

// Of several possible arrangements of pieces the one whose values make the best sense.
ParameterResult best_explanation(const std::vector<Parameter>& arrangements,
                                 const ExplainContext& context) {
  ParameterResult best = explain(arrangements.front(), context);
  for (auto other = arrangements.begin() + 1; other != arrangements.end() && !best.is_right();
       ++other) {
    ParameterResult result = explain(*other, context);
    if (preference(result.explanation) < preference(best.explanation)) best = std::move(result);
  }
  return best;
}

// A gradient that is exactly zero on paper (a bias before a normalisation) is noise on both sides.
void tell_noise(std::vector<ParameterResult>& results) {
  double largest = 0;
  for (const ParameterResult& r : results) largest = std::max(largest, r.largest_expected);
  for (ParameterResult& r : results) {
    const bool unexplained = r.explanation == Explanation::kUnexplained ||
                             r.explanation == Explanation::kClose ||
                             r.explanation == Explanation::kUnsynchronised;
    const double noise =
        2 * std::min(unit_roundoff(r.dtype), unit_roundoff(DType::kFloat32)) * largest;
    if (!unexplained || std::max(r.largest_expected, r.largest_observed) > noise) continue;
    r.explanation = Explanation::kNoise;
    r.headline = "differs, but both sides are rounding noise beside the other gradients";
  }
}

std::vector<std::string> notes_for(const Dump& reference, const DumpComparison& comparison) {
  std::vector<std::string> notes;
  const auto absent = [&](const std::string& path, const std::vector<int>& ranks) {
    if (!ranks.empty())
      notes.push_back(
          fmt::format("{} has no file of {}: what those ranks hold was not compared, and sums over "
                      "them cannot be told.",
                      for_terminal(path), ranks_text(ranks)));
  };
  absent(reference.path, reference.absent_ranks());
  absent(comparison.observed, comparison.absent_ranks);
  std::set<std::string> arrangements;
  for (const ParameterResult& r : comparison.parameters)
    if (!r.arrangement.empty()) arrangements.insert(r.arrangement);
  for (const std::string& text : arrangements)
    notes.push_back(
        fmt::format("Taken for {}, by their shapes: the files do not say how pieces lie.", text));
  return notes;
}

}  // namespace

bool DumpComparison::all_right() const {
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const ParameterResult& r) { return r.is_right(); });
}

DumpComparison compare_dumps(const Dump& reference, const Dump& observed,
                             const ToleranceOptions& tolerance) {
  check_common_names(reference, observed);
  DumpComparison comparison;
  comparison.reference = reference.path;
  comparison.observed = observed.path;
  const bool whole = observed.ranks.size() == 1 && observed.ranks[0].rank == kWhole;
  comparison.world_size = whole ? 0 : observed.world_size();
  if (const DumpMesh* mesh = observed.mesh()) comparison.mesh = mesh->axes;
  comparison.absent_ranks = observed.absent_ranks();

  const ExplainContext context{std::max(1, comparison.world_size), tolerance};
  std::set<std::string> all = names_in(reference);
  all.merge(names_in(observed));
  std::vector<std::string> names(all.begin(), all.end());
  std::sort(names.begin(), names.end(), natural_less);
  for (const std::string& name : names) {
    const Reference truth = reference_of(reference, name, tolerance);
    comparison.parameters.push_back(
        best_explanation(parameters_of(observed, name, truth), context));
  }
  tell_noise(comparison.parameters);
  comparison.notes = notes_for(reference, comparison);
  return comparison;
}

}  // namespace distgrad::dumps
