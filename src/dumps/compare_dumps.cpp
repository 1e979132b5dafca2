#include "dumps/compare_dumps.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <utility>

#include "base/did_you_mean.h"
#include "base/error.h"
#include "dumps/clipping.h"
#include "dumps/patterns.h"
#include "dumps/second_look.h"
#include "model/ranks_text.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

std::set<std::string> names_in(const Dump& dump) {
  std::set<std::string> names;
  for (const RankDump& rank : dump.ranks)
    for (const auto& [name, gradient] : rank.gradients) names.insert(name);
  return names;
}

// Returns `; but for "model." the names are the same: --prefix model.` if that is so.
std::string prefix_text(const std::set<std::string>& a, const std::set<std::string>& b) {
  for (const auto& [longer, shorter] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (std::size_t at = 0; (at = longer->begin()->find('.', at)) != std::string::npos;) {
      const std::string prefix = longer->begin()->substr(0, ++at);
      if (std::all_of(longer->begin(), longer->end(), [&](const std::string& name) {
            return name.starts_with(prefix) && shorter->count(name.substr(prefix.size())) > 0;
          }))
        return fmt::format("; but for \"{0}\" the names are the same: --prefix {0}",
                           for_terminal(prefix));
    }
  return {};
}

void check_common_names(const Dump& reference, const Dump& observed) {
  const std::set<std::string> a = names_in(reference), b = names_in(observed);
  const bool common =
      std::any_of(a.begin(), a.end(), [&](const std::string& name) { return b.count(name) > 0; });
  if (common || a.empty() || b.empty()) return;
  throw UserError(fmt::format("{} and {} have no parameter in common: \"{}\" there, \"{}\" here{}",
                              for_terminal(reference.path), for_terminal(observed.path),
                              for_terminal(*a.begin()), for_terminal(*b.begin()),
                              prefix_text(a, b)));
}

// --- Names and their order ---

struct Name {
  std::string plain, shown;
  int position = INT_MAX;
};

// Writes the first few.
std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 6;
  const std::size_t shown = std::min(kMost, names.size());
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

void note_names(const Dump& dump, int offset, std::map<std::string, Name>& names) {
  for (const RankDump& rank : dump.ranks)
    for (const auto& [plain, gradient] : rank.gradients) {
      const auto shown = rank.shown.find(plain);
      const auto [name, is_new] =
          names.try_emplace(plain, Name{plain, shown == rank.shown.end() ? plain : shown->second});
      if (is_new && gradient.position) name->second.position = offset + *gradient.position;
    }
}

// Names and orders them as the reference does; those that only the observed dump has come last.
std::vector<Name> ordered_names(const Dump& reference, const Dump& observed) {
  constexpr int kAfterwards = 1 << 24;
  std::map<std::string, Name> names;
  note_names(reference, 0, names);
  note_names(observed, kAfterwards, names);
  std::vector<Name> order;
  for (auto& [plain, name] : names) order.push_back(std::move(name));
  std::sort(order.begin(), order.end(),
            [](const Name& a, const Name& b) { return natural_less(a.shown, b.shown); });
  std::stable_sort(order.begin(), order.end(),
                   [](const Name& a, const Name& b) { return a.position < b.position; });
  return order;
}

// --- Patterns ---

// Returns the pattern that was probably meant by one that fits nothing, or "".
std::string meant_by(const std::string& pattern, const std::vector<std::string>& names) {
  const auto fits = [&](const std::string& other) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return fnmatch(other.c_str(), name.c_str(), 0) == 0;
    });
  };
  for (const std::string& inside : {pattern + ".*", "*." + pattern, "*." + pattern + ".*"})
    if (fits(inside)) return inside;
  for (std::size_t dot = pattern.find('.'); dot != pattern.npos; dot = pattern.find('.', dot + 1))
    if (std::string rest = pattern.substr(dot + 1); rest != "*" && fits(rest)) return rest;
  std::vector<std::string> known = names;
  for (const std::string& name : names)
    for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      known.push_back(name.substr(0, dot) + ".*");
      known.push_back("*" + name.substr(dot));
    }
  return nearest_name(pattern, known);
}

// Refuses a misspelt pattern. If it were ignored, gradients would stay unreduced, or a rank be
// blamed.
void check_fits(const std::string& option, const std::string& pattern,
                const std::vector<Name>& names, const Holders& reference, const Holders& observed) {
  std::vector<std::string> shown;
  for (const Name& name : names) {
    if (reference.matches(name.plain, pattern) || observed.matches(name.plain, pattern)) return;
    shown.push_back(for_terminal(name.shown));
  }
  const std::string meant = meant_by(pattern, shown);
  throw UserError(
      fmt::format("compare: {} \"{}\" fits no parameter{} {}", option, for_terminal(pattern),
                  meant.empty() ? ":" : fmt::format("; did you mean \"{}\"? There are", meant),
                  names_text(shown)));
}

// --- Results ---

int preference(Explanation e) {
  if (e == Explanation::kRight || e == Explanation::kNoise) return 0;
  return e == Explanation::kUnexplained || e == Explanation::kUnsynchronised ? 2 : 1;
}

// Makes parameters unclear that are cut alike and right, but in different orders of the axes: then
// ranks may have exchanged the pieces of some. One that is right in every order shows nothing.
void doubt_opposite_orders(std::vector<ParameterResult>& results) {
  std::map<std::string, std::vector<ParameterResult*>> by_grid;
  for (ParameterResult& r : results)
    if (r.is_right() && !r.grid.empty()) by_grid[r.grid].push_back(&r);
  for (const auto& [grid, members] : by_grid) {
    std::map<std::string, std::vector<const ParameterResult*>> by_order;
    for (const ParameterResult* r : members)
      for (const std::string& order : r->orders) by_order[order].push_back(r);
    const auto has_all = [&](const auto& o) { return o.second.size() == members.size(); };
    if (std::ranges::any_of(by_order, has_all)) continue;
    std::vector<std::string> parts;
    for (const auto& [order, fitting] : by_order)
      parts.push_back(fmt::format("{} fits {}", order, fitting.front()->name));
    for (ParameterResult* r : members) {
      if (r->orders.size() == by_order.size()) continue;
      r->explanation = Explanation::kUnclear;
      r->arrangement.clear();
      r->headline = fmt::format(
          "cannot be judged: no one order of the axes fits all parameters cut in this grid ({}), "
          "so ranks may have exchanged pieces",
          fmt::join(parts, "; "));
    }
  }
}

class Comparing {
 public:
  Comparing(const Dump& reference, const Dump& observed, const ComparisonOptions& options,
            int world_size)
      : reference_(reference, options.partly_held),
        observed_(observed, options.partly_held, holds_flat_pieces(observed, reference)),
        reductions_(options.reductions) {
    context_.world_size = world_size;
    context_.tolerance = options.tolerance;
    context_.counts = options.counts;
    for (const RankDump& rank : observed.ranks)
      for (const auto& [name, count] : rank.counts)
        if (std::none_of(context_.counts.begin(), context_.counts.end(),
                         [&](const NamedCount& c) { return c.name == name; }))
          context_.counts.push_back({name, count});
  }

  // Looks twice, since what rounding may leave is known once all gradients are: the largest, and
  // the coarsest dtype. Gradients kept in a wider dtype (norms, routers) were computed through that
  // one, as all were through the dtype that the user names. But what a mistake explains to its last
  // digits is no rounding, however small.
  std::vector<ParameterResult> results(const std::vector<Name>& names) {
    std::vector<ParameterResult> results;
    Tolerance& tolerance = context_.tolerance;
    const std::optional<DType> asked = std::exchange(tolerance.dtype, std::nullopt);
    for (const Name& name : names) results.push_back(result_of(name));
    tolerance.dtype = asked;
    for (const ParameterResult& r : results) {
      tolerance.model_largest = std::max(tolerance.model_largest, r.largest_expected);
      tolerance.model_largest_observed =
          std::max(tolerance.model_largest_observed, r.largest_observed);
      tolerance.dtype = tolerance.computed_in(r.dtype);
    }
    for (std::size_t i = 0; i < results.size(); ++i)
      if (may_be_rounding(results[i])) results[i] = result_of(names[i]);
    look_again(names, results);
    doubt_opposite_orders(results);
    return results;
  }

  const Holders& observed() const { return observed_; }

  void check_patterns(const std::vector<Name>& names, const ComparisonOptions& options) const {
    for (const std::string& pattern : options.partly_held)
      check_fits("--partly-held", pattern, names, reference_, observed_);
    for (const auto& [pattern, reduction] : options.reductions)
      check_fits("--reduce", pattern, names, reference_, observed_);
  }

  // Says what clipping by other norms leaves, or returns "" if no parameter looks like that.
  std::string clipped(const std::vector<ParameterResult>& results) {
    return clipped_by_other_norm(reference_, observed_.dump(), context_.tolerance, results);
  }

 private:
  void look_again(const std::vector<Name>& names, std::vector<ParameterResult>& results) {
    const SecondLook look = second_look(results);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!may_say_more(results[i], look)) continue;
      context_.shown = look.shown;
      context_.sums = look.sums;
      ParameterResult shown = result_of(names[i]);
      if (!shown.is_right() && preference(shown.explanation) < preference(results[i].explanation))
        results[i] = std::move(shown);
      context_.shown.clear();
      context_.sums.clear();
      if (look.common == 1) continue;
      context_.common = look.common;
      ParameterResult divided = result_of(names[i]);
      if (says_more(results[i], divided))
        results[i] = beside_common(std::move(divided), results[i], look.common);
      context_.common = 1;
    }
  }

  ParameterResult result_of(const Name& name) {
    const Reference truth = reference_of(reference_, name.plain, context_.tolerance);
    ParameterResult result =
        best_explanation(parameters_of(observed_, name.plain, truth, reduction_of(name.plain)));
    result.name = name.shown;
    result.position = name.position == INT_MAX ? -1 : name.position;
    return result;
  }

  std::string reduction_of(const std::string& name) const {
    for (const auto& [pattern, reduction] : reductions_)
      if (observed_.matches(name, pattern)) return reduction;
    return {};
  }

  // Chooses, of several possible arrangements of pieces, the one whose values make the most sense.
  ParameterResult best_explanation(const std::vector<Parameter>& arrangements) const {
    std::optional<ParameterResult> best;
    std::set<std::string> orders;
    for (const Parameter& p : arrangements) {
      if (best && best->is_right() && p.grid.empty()) break;
      ParameterResult result = explain(p, context_);
      if (result.is_right()) orders.insert(p.order);
      if (!best || preference(result.explanation) < preference(best->explanation))
        best = std::move(result);
    }
    best->grid = arrangements.front().grid;
    best->orders = std::move(orders);
    return *best;
  }

  static bool may_be_rounding(const ParameterResult& r) {
    constexpr std::int64_t kFew = 8;  // elements; so few may fit by chance
    switch (r.explanation) {
      case Explanation::kUnexplained:
      case Explanation::kClose:
      case Explanation::kUnsynchronised:
      case Explanation::kSomeRanks:
      case Explanation::kZero:
      case Explanation::kUnclear:
        return true;
      case Explanation::kScaled:
      case Explanation::kSum:
      case Explanation::kOtherSlice:
      case Explanation::kTransposed:
        return element_count(r.shape) < kFew;
      default:
        return false;
    }
  }

  Holders reference_, observed_;
  std::vector<std::pair<std::string, std::string>> reductions_;
  ExplainContext context_;
};

// --- What is to be said of the whole ---

std::string vacuous_text(const Dump& observed, const std::vector<ParameterResult>& results) {
  double largest = 0;
  for (const ParameterResult& r : results)
    largest = std::max({largest, r.largest_expected, r.largest_observed});
  if (largest == 0)
    return "every gradient is zero or None, in the reference and in the run: two dead models agree";
  const std::string& digest = observed.ranks.front().local_digest;
  const bool alike = observed.ranks.size() > 1 && !digest.empty() &&
                     std::all_of(observed.ranks.begin(), observed.ranks.end(),
                                 [&](const RankDump& r) { return r.local_digest == digest; });
  if (!alike) return {};
  return "every rank computed the same gradients before anything was reduced, so that a missing "
         "average would not show: give each rank data of its own";
}

std::vector<std::string> notes_for(const Dump& reference, const DumpComparison& comparison,
                                   const Holders& holders) {
  std::vector<std::string> notes;
  const auto absent = [&](const std::string& path, const std::vector<int>& ranks) {
    if (!ranks.empty())
      notes.push_back(fmt::format(
          "{} has no file of {}: what those ranks hold was not compared, and no sum over "
          "them can be judged.",
          for_terminal(path), ranks_text(ranks)));
  };
  absent(reference.path, reference.absent_ranks());
  absent(comparison.observed, comparison.absent_ranks);
  std::set<std::string> arrangements;
  std::map<std::string, std::vector<std::string>> own;
  for (const ParameterResult& r : comparison.parameters) {
    if (!r.arrangement.empty()) arrangements.insert(r.arrangement);
    for (const std::string& note : r.notes) own[note].push_back(for_terminal(r.name));
  }
  for (const std::string& text : arrangements)
    notes.push_back(fmt::format("Taken for {}, by their shapes alone.", text));
  for (const auto& [ranks, names] : holders.inferred()) {
    std::vector<std::string> elsewhere;
    if (!ranks.others.empty()) elsewhere.push_back("others on " + ranks_text(ranks.others));
    if (!ranks.nothing.empty()) elsewhere.push_back("none on " + ranks_text(ranks.nothing));
    notes.push_back(fmt::format("{} on {} alone; in their place are {}.",
                                count_text(static_cast<long>(names.size()), "parameter"),
                                ranks_text(ranks.holders), fmt::join(elsewhere, ", and ")));
  }
  for (const auto& [note, names] : own)
    notes.push_back(fmt::format("{}: {}.", names_text(names), note));
  return notes;
}

}  // namespace

bool DumpComparison::all_right() const {
  return std::none_of(parameters.begin(), parameters.end(),
                      [](const ParameterResult& r) { return r.is_wrong(); });
}

DumpComparison compare_dumps(const Dump& reference, const Dump& observed,
                             const ComparisonOptions& options) {
  check_common_names(reference, observed);
  DumpComparison comparison;
  comparison.reference = reference.path;
  comparison.observed = observed.path;
  const bool whole = observed.ranks.size() == 1 && observed.ranks[0].rank == kWhole;
  comparison.world_size = whole ? 0 : observed.world_size();
  if (const DumpMesh* mesh = observed.mesh()) comparison.mesh = mesh->axes;
  comparison.absent_ranks = observed.absent_ranks();
  Comparing comparing(reference, observed, options, std::max(1, comparison.world_size));
  const std::vector<Name> names = ordered_names(reference, observed);
  comparing.check_patterns(names, options);
  comparison.parameters = comparing.results(names);
  if (comparison.all_right()) comparison.vacuous = vacuous_text(observed, comparison.parameters);
  comparison.notes = notes_for(reference, comparison, comparing.observed());
  if (std::string clipped = comparing.clipped(comparison.parameters); !clipped.empty())
    comparison.notes.push_back(std::move(clipped));
  return comparison;
}

}  // namespace distgrad::dumps
