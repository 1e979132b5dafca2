#include "judge/sync_mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

namespace distgrad {
namespace {

using Kind = SyncMistake::Kind;
using Lists = std::vector<std::vector<int>>;

constexpr int kMostMembers = 8;  // for each of whom a sum without it is tried
constexpr std::string_view kPrefix = "sync:";
constexpr std::string_view kWorld = "world";

struct KindRow {
  Kind kind;
  std::string_view word;
  FindingName finding;
};
constexpr std::array kKinds = std::to_array<KindRow>({
    // kind, in a rule's name, finding
    {Kind::kForgotten, "forgotten", "missing-reduction"},
    {Kind::kOtherOp, "other_op", "scaled"},
    {Kind::kTwice, "twice", "double-reduction"},
    {Kind::kDivided, "divided", "scaled"},
    {Kind::kGroup, "group", "wrong-group"},
    {Kind::kWithout, "without", "missing-reduction"},
    {Kind::kAlone, "alone", "unsynchronised"},
    {Kind::kReduced, "reduced", "unsynchronised"},
});

const KindRow& row_of(Kind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(),
                       [&](const KindRow& r) { return r.kind == kind; });
}

// Says what is to be summed over which ranks after backward.
struct Reduction {
  std::string axis;
  Input::Sync how = Input::Sync::kSum;
  bool is_declared = true;  // false: of an invariant input, whose backward owes it
  Lists lines;              // the ranks that it sums over; each rank is in one list
};

// Groups the ranks that agree in all coordinates but those along the axes that `along` takes.
template <class Along>
Lists lines_along(const std::vector<PlacedAxis>& axes, int world_size, const Along& along) {
  std::map<std::vector<int>, std::vector<int>> lines;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int> others;
    for (const PlacedAxis& axis : axes)
      if (!along(axis)) others.push_back(axis.coordinate[static_cast<std::size_t>(rank)]);
    lines[others].push_back(rank);
  }
  Lists all;
  for (auto& [others, line] : lines) all.push_back(std::move(line));
  return all;
}

// Returns the axes' names in the order of placed_axes().
std::vector<std::string> names_of_axes(const Program& program, const Input& input,
                                       std::size_t count) {
  std::vector<std::string> names;
  if (input.layout.size() == 1 && input.layout[0].axis.empty()) {
    if (count == program.mesh().size())
      for (const Group* group : program.mesh()) names.push_back(group->name);
  } else {
    for (const AxisLayout& entry : input.layout) names.push_back(entry.axis);
  }
  names.resize(count);
  return names;
}

std::vector<Reduction> reductions_of(const Program& program, const Input& input) {
  std::vector<Reduction> all;
  if (input.is_local()) return all;
  const std::vector<PlacedAxis> axes = placed_axes(program, input);
  const std::vector<std::string> names = names_of_axes(program, input, axes.size());
  const auto is_invariant = [](const PlacedAxis& axis) {
    return axis.layout.kind == Layout::Kind::kInvariant;
  };
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (axes[a].sync)
      all.push_back({names[a], *axes[a].sync, true,
                     lines_along(axes, program.world_size,
                                 [&](const PlacedAxis& axis) { return &axis == &axes[a]; })});
  if (std::any_of(axes.begin(), axes.end(), is_invariant))
    all.push_back(
        {"", Input::Sync::kSum, false, lines_along(axes, program.world_size, is_invariant)});
  return all;
}

std::size_t largest(const Lists& lines) {
  std::size_t size = 0;
  for (const auto& line : lines) size = std::max(size, line.size());
  return size;
}

Lists lists_of_group(const Program& program, const std::string& name) {
  if (const Group* group = program.group_named(name)) return group->partition;
  Lists world(1, std::vector<int>(static_cast<std::size_t>(program.world_size)));
  std::iota(world[0].begin(), world[0].end(), 0);
  return world;
}

std::set<std::set<int>> line_sets(const Lists& lines) {
  std::set<std::set<int>> all;
  for (const auto& line : lines) all.insert(std::set<int>(line.begin(), line.end()));
  return all;
}

// --- What the ranks hold ---

// Adds in extended precision, so that the sum rounds once however many ranks there are, as that of
// synchronised() in assemble.h does.
class Sum {
 public:
  // Returns false if the term has another shape.
  bool add(const std::optional<Array>& term) {
    if (!term) return true;
    if (!shape_) {
      shape_ = term->shape();
      values_.assign(term->values().size(), 0.0L);
    }
    if (term->shape() != *shape_) return false;
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += term->values()[i];
    return true;
  }

  std::optional<Array> divided_by(double divisor) const {
    if (!shape_) return std::nullopt;
    std::vector<double> values;
    for (const long double v : values_) values.push_back(static_cast<double>(v) / divisor);
    return Array(*shape_, std::move(values));
  }

 private:
  std::optional<Shape> shape_;
  std::vector<long double> values_;
};

// Says whom the line's sum counts, who gets it, and what it is divided by.
struct Line {
  std::vector<int> counted, given;
  double divisor = 1;
};

Line line_under(const std::vector<int>& ranks, Input::Sync how,
                const std::optional<SyncMistake>& m) {
  const auto size = static_cast<double>(ranks.size());
  Line line{ranks, ranks, how == Input::Sync::kMean ? size : 1};
  if (!m) return line;
  switch (m->kind) {
    case Kind::kForgotten:
      line.given.clear();
      break;
    case Kind::kOtherOp:
      line.divisor = how == Input::Sync::kMean ? 1 : size;
      break;
    case Kind::kTwice:
      line.divisor = 1 / size;
      break;
    case Kind::kDivided:
      line.divisor = size * size;
      break;
    case Kind::kWithout:
      std::erase(line.counted, m->rank);
      break;
    case Kind::kAlone:
      std::erase(line.counted, m->rank);
      std::erase(line.given, m->rank);
      if (how == Input::Sync::kMean) line.divisor = static_cast<double>(line.counted.size());
      break;
    case Kind::kReduced:
      line.given.resize(1);
      break;
    case Kind::kGroup:
      break;
  }
  return line;
}

std::optional<GradientByRank> reduced(const Reduction& reduction, const Lists& lists,
                                      const std::optional<SyncMistake>& mistake,
                                      const GradientByRank& shares) {
  GradientByRank result = shares;
  for (const std::vector<int>& ranks : lists) {
    const Line line = line_under(ranks, reduction.how, mistake);
    Sum sum;
    for (const int rank : line.counted)
      if (!sum.add(shares[static_cast<std::size_t>(rank)])) return std::nullopt;
    const std::optional<Array> total = sum.divided_by(line.divisor);
    for (const int rank : line.given) result[static_cast<std::size_t>(rank)] = total;
  }
  return result;
}

// --- Words ---

std::string over_whom(const Reduction& reduction) {
  return reduction.axis.empty() ? "over the ranks" : "over the ranks along " + reduction.axis;
}

std::string over_group(const std::string& group) {
  return group == kWorld ? "over the whole world" : "over the group " + group;
}

}  // namespace

std::optional<SyncMistake> sync_mistake_named(std::string_view rule) {
  if (!rule.starts_with(kPrefix)) return std::nullopt;
  rule.remove_prefix(kPrefix.size());
  const std::size_t first = rule.find(':'), second = rule.find(':', first + 1);
  const std::string_view word = rule.substr(0, first);
  SyncMistake mistake;
  for (const KindRow& row : kKinds)
    if (row.word == word) mistake.kind = row.kind;
  mistake.axis = rule.substr(first + 1, second - first - 1);
  if (second == std::string_view::npos) return mistake;
  const std::string whom(rule.substr(second + 1));
  if (mistake.kind == Kind::kGroup)
    mistake.group = whom;
  else
    mistake.rank = std::stoi(whom);
  return mistake;
}

std::vector<std::string> sync_mistakes_of(const Program& program, const Input& input) {
  std::vector<std::string> all;
  for (const Reduction& r : reductions_of(program, input)) {
    const std::size_t size = largest(r.lines);
    const auto propose = [&](Kind kind, const std::string& whom = "") {
      all.push_back(fmt::format("{}{}:{}{}", kPrefix, row_of(kind).word, r.axis,
                                whom.empty() ? "" : ":" + whom));
    };
    if (size >= 2) {
      if (r.is_declared) propose(Kind::kForgotten);  // else that is the adjoint
      propose(Kind::kOtherOp);
      propose(r.how == Input::Sync::kSum ? Kind::kTwice : Kind::kDivided);
    }
    std::set<std::set<std::set<int>>> known = {line_sets(r.lines)};
    const auto propose_group = [&](const std::string& name) {
      const Lists lists = lists_of_group(program, name);
      if (largest(lists) > 1 && known.insert(line_sets(lists)).second) propose(Kind::kGroup, name);
    };
    for (const Group& group : program.groups) propose_group(group.name);
    propose_group(std::string(kWorld));
    if (size >= 2) propose(Kind::kReduced);
    if (program.world_size > kMostMembers) continue;
    for (const auto& line : r.lines)
      for (const int rank : line) {
        if (line.size() >= 2) propose(Kind::kWithout, std::to_string(rank));
        // With two ranks, kAlone is kForgotten.
        if (line.size() >= 3) propose(Kind::kAlone, std::to_string(rank));
      }
  }
  return all;
}

std::optional<GradientByRank> synchronised(const Program& program, const Input& input,
                                           const std::vector<SyncMistake>& rules,
                                           const GradientByRank& shares) {
  GradientByRank gradients = shares;
  for (const Reduction& r : reductions_of(program, input)) {
    const auto found = std::find_if(rules.begin(), rules.end(), [&](const SyncMistake& m) {
      return m.axis == r.axis && (r.is_declared || m.axis.empty());
    });
    const bool is_wrong = found != rules.end();
    if (!is_wrong && !r.is_declared) continue;  // what backward gave stays
    const std::optional<SyncMistake> mistake = is_wrong ? std::optional(*found) : std::nullopt;
    const bool elsewhere = is_wrong && found->kind == Kind::kGroup;
    auto next =
        reduced(r, elsewhere ? lists_of_group(program, found->group) : r.lines, mistake, gradients);
    if (!next) return std::nullopt;
    gradients = std::move(*next);
  }
  return gradients;
}

FindingName finding_of(SyncMistake::Kind kind) { return row_of(kind).finding; }

std::string text_of(const Program& program, const Input& input, const SyncMistake& mistake,
                    const std::string& inputs) {
  Reduction reduction;
  for (Reduction& r : reductions_of(program, input))
    if (r.axis == mistake.axis) reduction = std::move(r);
  const bool is_mean = reduction.how == Input::Sync::kMean;
  const std::string whom = over_whom(reduction), done = is_mean ? "averaged" : "summed";
  const std::string what = reduction.is_declared ? "after backward" : "on its way to the input";
  switch (mistake.kind) {
    case Kind::kForgotten:
      return fmt::format(
          "each rank holds its own share of the gradient of {} alone, which was not {} {} {}. "
          "All-reduce it before the optimizer's step, as DistributedDataParallel does.",
          inputs, done, whom, what);
    case Kind::kOtherOp:
      if (is_mean)
        return fmt::format(
            "the gradient of {} was summed {} {}, where its mean is meant. Divide the sum by the "
            "number of ranks that it is taken over.",
            inputs, whom, what);
      return fmt::format(
          "the gradient of {} was averaged {} {}, where its sum is meant. Leave the division by "
          "the number of ranks out, or the one that is made elsewhere.",
          inputs, whom, what);
    case Kind::kTwice:
      return fmt::format(
          "the gradient of {} was summed {} twice. Sum in one place only: look for a hook or a "
          "wrapper (DistributedDataParallel) beside an all_reduce of one's own, or beside a "
          "backward that sums.",
          inputs, whom);
    case Kind::kDivided:
      return fmt::format(
          "the gradient of {} was averaged {} {} and divided by their number once more. Divide in "
          "one place only: the loss or the all_reduce.",
          inputs, whom, what);
    case Kind::kGroup:
      return fmt::format(
          "the gradient of {} was {} {} instead of {}. Hand the all_reduce the process group of "
          "the ranks that hold a copy and saw other data.",
          inputs, done, over_group(mistake.group), whom);
    case Kind::kWithout:
      return fmt::format(
          "what rank {} has of the gradient of {} is missing from what was {} {}. Look for a "
          "branch, a detach or a no_sync() on that rank, or a parameter that it does not use.",
          mistake.rank, inputs, done, whom);
    case Kind::kAlone:
      return fmt::format(
          "rank {} holds its own share of the gradient of {}, and the others were {} without it. "
          "Make every rank take part in the all_reduce.",
          mistake.rank, inputs, done);
    case Kind::kReduced:
      break;
  }
  return fmt::format(
      "the gradient of {} was {} {}, but the result is on the first rank alone; the others hold "
      "their own share. Use all_reduce, not reduce.",
      inputs, done, whom);
}

}  // namespace distgrad
