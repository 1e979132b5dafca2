#include "model/objective.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "model/distance.h"

namespace distgrad {
namespace {

using Kind = Objective::Kind;
using Word = Objective::Axis;

// Describes one mesh axis. Without a mesh the world is one axis with an empty name.
struct AxisOfRanks {
  std::string name;
  int size = 1;
  std::vector<int> coordinates;  // by rank
};

AxisOfRanks whole_world(int world_size) {
  AxisOfRanks world{.name = "", .size = world_size, .coordinates = {}};
  for (int r = 0; r < world_size; ++r) world.coordinates.push_back(r);
  return world;
}

std::vector<AxisOfRanks> axes_of(const Program& program) {
  std::vector<AxisOfRanks> axes;
  for (const Group* group : program.mesh()) {
    AxisOfRanks axis{.name = group->name, .size = 1, .coordinates = {}};
    axis.coordinates.resize(static_cast<std::size_t>(program.world_size));
    for (const std::vector<int>& list : group->partition) {
      axis.size = static_cast<int>(list.size());
      for (std::size_t i = 0; i < list.size(); ++i)
        axis.coordinates.at(static_cast<std::size_t>(list[i])) = static_cast<int>(i);
    }
    axes.push_back(std::move(axis));
  }
  if (axes.empty()) axes.push_back(whole_world(program.world_size));
  return axes;
}

// Returns what the objective says of each axis. Throws std::logic_error for rank:k.
std::vector<Word> words_of(const std::vector<AxisOfRanks>& axes, const Objective& objective) {
  switch (objective.kind) {
    case Kind::kSum:
      return std::vector<Word>(axes.size(), Word::kSum);
    case Kind::kMean:
      return std::vector<Word>(axes.size(), Word::kMean);
    case Kind::kReplicated:
      return std::vector<Word>(axes.size(), Word::kReplicated);
    case Kind::kRank:
      throw std::logic_error("the objective rank:k has no words by axis");
    case Kind::kByAxis:
      break;
  }
  std::vector<Word> words;
  for (const AxisOfRanks& axis : axes) {
    const auto found = std::find_if(objective.axes.begin(), objective.axes.end(),
                                    [&](const auto& named) { return named.first == axis.name; });
    if (found == objective.axes.end())
      throw std::logic_error("the objective says nothing of mesh axis " + axis.name);
    words.push_back(found->second);
  }
  return words;
}

std::vector<double> weights_of_rank(int world_size, int rank) {
  std::vector<double> weights(static_cast<std::size_t>(world_size), 0.0);
  weights.at(static_cast<std::size_t>(rank)) = 1.0;
  return weights;
}

bool averages_along(const Input& input, const std::string& axis) {
  return std::any_of(input.sync.begin(), input.sync.end(), [&](const auto& sync) {
    return sync.second == Input::Sync::kMean && (sync.first.empty() || sync.first == axis);
  });
}

bool some_sync_averages(const Program& program, const std::string& axis) {
  return std::any_of(program.inputs.begin(), program.inputs.end(),
                     [&](const Input& input) { return averages_along(input, axis); });
}

// Returns the axes whose size the weight of backward should divide by, including those left to a
// sync.
std::vector<AxisOfRanks> dividing_axes(const Program& program, const Objective& objective,
                                       bool divides_replicated) {
  std::vector<AxisOfRanks> dividing;
  if (objective.kind == Kind::kRank) return dividing;
  const std::vector<AxisOfRanks> axes = axes_of(program);
  const std::vector<Word> words = words_of(axes, objective);
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (words[a] == Word::kMean || (words[a] == Word::kReplicated && divides_replicated))
      dividing.push_back(axes[a]);
  return dividing;
}

// Groups ranks that differ only along the replicated axes into lists of two or more.
std::vector<std::vector<int>> lists_along(const std::vector<AxisOfRanks>& axes,
                                          const std::vector<Word>& words, int world_size) {
  std::vector<std::pair<std::vector<int>, std::vector<int>>> lists;  // fixed coordinates, ranks
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int> fixed;
    for (std::size_t a = 0; a < axes.size(); ++a)
      if (words[a] != Word::kReplicated)
        fixed.push_back(axes[a].coordinates[static_cast<std::size_t>(rank)]);
    const auto found = std::find_if(lists.begin(), lists.end(),
                                    [&](const auto& list) { return list.first == fixed; });
    if (found == lists.end()) {
      lists.push_back({std::move(fixed), {rank}});
    } else {
      found->second.push_back(rank);
    }
  }
  std::vector<std::vector<int>> result;
  for (auto& [fixed, ranks] : lists)
    if (ranks.size() > 1) result.push_back(std::move(ranks));
  return result;
}

bool agree(const Program& program, const Objective& objective, const std::vector<double>& losses) {
  for (const std::vector<int>& ranks : ranks_that_agree(program, objective))
    for (const int rank : ranks)
      if (!same_value(losses.at(static_cast<std::size_t>(rank)),
                      losses.at(static_cast<std::size_t>(ranks.front()))))
        return false;
  return true;
}

// Returns every choice of a word for each axis of two or more ranks; on an axis of one rank all
// words mean the same. Beyond three such axes it keeps only those where one axis differs from all
// others, since 3^axes objectives would swamp the report.
std::vector<Objective> objectives_by_axis(const std::vector<AxisOfRanks>& axes) {
  constexpr std::array kWords = {Word::kSum, Word::kMean, Word::kReplicated};
  constexpr std::size_t kFullyCombinedAxes = 3;
  std::vector<std::size_t> free;
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (axes[a].size > 1) free.push_back(a);
  Objective start{.kind = Kind::kByAxis, .rank = 0, .axes = {}};
  for (const AxisOfRanks& axis : axes) start.axes.push_back({axis.name, Word::kSum});

  std::vector<Objective> result = {start};
  if (free.size() <= kFullyCombinedAxes) {
    for (const std::size_t a : free) {
      std::vector<Objective> longer;
      for (const Objective& objective : result)
        for (const Word word : kWords) {
          longer.push_back(objective);
          longer.back().axes[a].second = word;
        }
      result = std::move(longer);
    }
    return result;
  }
  for (const Word most : kWords) {
    Objective uniform = start;
    for (const std::size_t a : free) uniform.axes[a].second = most;
    for (const std::size_t a : free)
      for (const Word word : kWords) {
        result.push_back(uniform);
        result.back().axes[a].second = word;
      }
  }
  return result;
}

std::string spelled(Word word) {
  switch (word) {
    case Word::kSum:
      return "sum";
    case Word::kMean:
      return "mean";
    case Word::kReplicated:
      return "replicated";
  }
  throw std::logic_error("unknown objective of an axis");
}

}  // namespace

std::string spelled(const Objective& objective) {
  switch (objective.kind) {
    case Kind::kSum:
      return "sum";
    case Kind::kMean:
      return "mean";
    case Kind::kReplicated:
      return "replicated";
    case Kind::kRank:
      return "rank:" + std::to_string(objective.rank);
    case Kind::kByAxis:
      break;
  }
  std::string text;
  for (const auto& [axis, word] : objective.axes)
    text += (text.empty() ? "" : "+") + axis + "=" + spelled(word);
  return text;
}

std::vector<double> truth_weights(const Program& program, const Objective& objective) {
  if (objective.kind == Kind::kRank) return weights_of_rank(program.world_size, objective.rank);
  const std::vector<AxisOfRanks> axes = axes_of(program);
  const std::vector<Word> words = words_of(axes, objective);
  // One division by the product of the sizes rounds only once.
  int divisor = 1;
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (words[a] == Word::kMean) divisor *= axes[a].size;
  std::vector<double> weights(static_cast<std::size_t>(program.world_size), 1.0 / divisor);
  for (std::size_t a = 0; a < axes.size(); ++a)
    for (std::size_t r = 0; r < weights.size(); ++r)
      if (words[a] == Word::kReplicated && axes[a].coordinates[r] != 0) weights[r] = 0.0;
  return weights;
}

std::vector<double> backward_weights(const Program& program, const Objective& objective,
                                     bool divides_replicated) {
  if (objective.kind == Kind::kRank) return weights_of_rank(program.world_size, objective.rank);
  int divisor = 1;
  for (const AxisOfRanks& axis : dividing_axes(program, objective, divides_replicated))
    if (!some_sync_averages(program, axis.name)) divisor *= axis.size;
  return std::vector<double>(static_cast<std::size_t>(program.world_size), 1.0 / divisor);
}

std::vector<double> post_sync_divisors(const Program& program, const Objective& objective,
                                       bool divides_replicated) {
  std::vector<double> divisors(program.inputs.size(), 1.0);
  for (const AxisOfRanks& axis : dividing_axes(program, objective, divides_replicated)) {
    if (!some_sync_averages(program, axis.name)) continue;
    for (std::size_t i = 0; i < divisors.size(); ++i)
      if (!averages_along(program.inputs[i], axis.name)) divisors[i] *= axis.size;
  }
  return divisors;
}

std::vector<Objective> defined_objectives(const Program& program,
                                          const std::vector<double>& losses) {
  std::vector<Objective> defined;
  const auto add_if_losses_agree = [&](const Objective& objective) {
    if (agree(program, objective, losses)) defined.push_back(objective);
  };
  std::vector<std::vector<double>> plain_weights;
  for (const Kind kind : {Kind::kSum, Kind::kMean, Kind::kReplicated}) {
    const Objective plain{.kind = kind, .rank = 0, .axes = {}};
    plain_weights.push_back(truth_weights(program, plain));
    add_if_losses_agree(plain);
  }
  for (const Objective& objective : objectives_by_axis(axes_of(program))) {
    const std::vector<double> weights = truth_weights(program, objective);
    if (std::find(plain_weights.begin(), plain_weights.end(), weights) == plain_weights.end())
      add_if_losses_agree(objective);
  }
  for (int k = 0; k < program.world_size; ++k)
    defined.push_back({.kind = Kind::kRank, .rank = k, .axes = {}});
  return defined;
}

std::vector<std::vector<int>> ranks_that_agree(const Program& program, const Objective& objective) {
  if (objective.kind == Kind::kRank) return {};
  const std::vector<AxisOfRanks> axes = axes_of(program);
  const std::vector<Word> words = words_of(axes, objective);
  if (std::find(words.begin(), words.end(), Word::kReplicated) == words.end()) return {};
  return lists_along(axes, words, program.world_size);
}

}  // namespace distgrad
