// Draws the loss and the objective.
#include <fmt/format.h>

#include "fuzz/draft.h"

namespace distgrad::fuzz {
namespace {

// Makes scalars of a tensor ?, with dense, expanded, transposed or sliced cotangents, scaled by
// element or by rank.
struct Scalar {
  std::string_view text;
  int least_dims = 0;
  Style style = Style::kExact;
};

constexpr std::array kScalars = {
    Scalar{"?.sum()"},
    Scalar{"(? * ?).sum()"},
    Scalar{"(? * ?).sum()"},
    Scalar{"(rank + 1) * (? * ?).sum()"},
    Scalar{"(? * torch.arange(?.numel()).reshape(?.shape)).sum()"},
    Scalar{"(? * torch.arange(?.numel()).reshape(?.shape)).sum() * (rank + 1)"},
    Scalar{"((? + rank) * ?).sum()"},
    Scalar{"(? * ?.detach()).sum()"},
    Scalar{"(torch.arange(?.numel()) * ?.reshape([-1])).sum()"},
    Scalar{"torch.cat([?, -3 * ?], 0)[1:].sum()", 1},
    Scalar{"(?.transpose(0, 1) * torch.arange(?.numel()).reshape(?.transpose(0, 1).shape)).sum()",
           2},
    Scalar{"(torch.stack([?, 2 * ?], -1) * torch.arange(2)).sum()"},
    Scalar{"?[..., ::2].sum() - ?.sum()", 1},
    Scalar{"torch.tanh(?).sum()", 0, Style::kSmooth},
    Scalar{"(? * torch.sin(?)).sum()", 0, Style::kSmooth},
    Scalar{"torch.log1p((? * ?).sum())", 0, Style::kSmooth},
    Scalar{"torch.sqrt(1 + (? * ?).sum())", 0, Style::kSmooth},
    Scalar{"0.3 * torch.cos(? + rank).sum()", 0, Style::kSmooth},
    Scalar{"torch.relu(?).sum()", 0, Style::kKinked},
    Scalar{"torch.abs(?).sum()", 0, Style::kKinked},
};

std::string filled(std::string_view text, const std::string& a) {
  std::string out;
  for (const char c : text) {
    if (c == '?')
      out += a;
    else
      out += c;
  }
  return out;
}

std::string draw_scalar(Draft& draft, const Value& value) {
  if (value.least_dims() == 0 && value.has_one_shape() && draft.random.chance(30))
    return value.text;
  for (;;) {
    const Scalar& row = draft.random.pick(kScalars);
    if (row.style > draft.style || value.least_dims() < row.least_dims) continue;
    // A loss may have any magnitude, except in the narrow dtypes, where 0, 1, ..., n times a large
    // value leaves the range.
    return filled(row.text, value.text);
  }
}

// Draws the word of an objective along one axis.
const char* draw_word(Draft& draft) {
  constexpr std::array kWords = {"sum", "sum", "mean", "mean", "replicated"};
  return draft.random.pick(kWords);
}

// Makes losses agree within a group by a sum, or by gathering and adding up. Returns false if the
// subject offers neither.
bool draw_agreement(Draft& draft, std::string& loss, const std::string& name,
                    const std::string& group) {
  const Offer& reduce = draft.choices.offers[static_cast<std::size_t>(CollectiveKind::kAllReduce)];
  const Offer& gather = draft.choices.offers[static_cast<std::size_t>(CollectiveKind::kAllGather)];
  Json call;
  const bool can_reduce = reduce.ops[0] && (reduce.groups || group.empty());
  const bool can_gather = gather.any() && (gather.groups || group.empty());
  if (!can_reduce && !can_gather) return false;
  if (can_reduce && !(can_gather && draft.random.chance(20))) {
    call["all_reduce"] = loss;
    if (reduce.ops[1] && draft.random.chance(40)) call["op"] = "avg";
    loss = name;
  } else {
    call["all_gather"] = loss;
    loss = fmt::format("({} * {}).sum()", name, name);
  }
  if (!group.empty()) call["group"] = group;
  Json step;
  step[name] = std::move(call);
  draft.file["steps"].push_back(std::move(step));
  return true;
}

bool is_mean_along(const Json& objective, const std::string& axis) {
  if (objective == "mean") return true;
  if (!objective.is_object() || objective.contains("rank")) return false;
  if (!axis.empty()) return objective[axis] == "mean";
  return std::all_of(objective.begin(), objective.end(),
                     [](const Json& word) { return word == "mean"; });
}

// Draws a mean only for an objective that is one; under a sum it would be the program's own
// mistake.
void draw_syncs(Draft& draft, const Json& objective) {
  for (const auto& [name, axes] : draft.replicated) {
    Json by_axis;
    for (const std::string& axis : axes) {
      if (draft.random.chance(50)) continue;
      by_axis[axis] = is_mean_along(objective, axis) && draft.random.chance(65) ? "mean" : "sum";
    }
    if (!by_axis.is_null()) draft.file["sync"][name] = by_axis.contains("") ? by_axis[""] : by_axis;
  }
}

}  // namespace

Value draw_loss(Draft& draft) {
  Random& random = draft.random;
  std::string text = draw_scalar(draft, draft.names.back());
  if (random.chance(25)) text += " + " + draw_scalar(draft, random.pick(draft.names));
  if (random.chance(10)) {
    const std::size_t rank = random.below(static_cast<std::size_t>(draft.world_size));
    const std::string other = draw_scalar(draft, random.pick(draft.names));
    text = fmt::format("({} if rank {} {} else {})", text, random.chance(50) ? "==" : "!=", rank,
                       random.chance(50) ? "0 * (" + other + ")" : other);
  }
  return {std::move(text), std::vector<Shape>(static_cast<std::size_t>(draft.world_size)),
          draft.limit};
}

void draw_objective(Draft& draft, std::string loss) {
  Random& random = draft.random;
  std::string word = random.pick(draft.choices.objectives);
  Json objective = word;
  std::vector<std::string> agreeing;  // groups
  if (word == "rank")
    objective = {{"rank", random.below(static_cast<std::size_t>(draft.world_size))}};
  if (word == "replicated") agreeing = {""};
  if (word == "axes") {
    objective = draft.mesh.empty() ? Json("sum") : Json();
    for (const auto& [axis, size] : draft.mesh) {
      objective[axis] = draw_word(draft);
      if (objective[axis] == "replicated") agreeing.push_back(axis);
    }
  }
  int made = 0;
  for (const std::string& group : agreeing) {
    if (draw_agreement(draft, loss, fmt::format("total{}", made++), group)) continue;
    if (group.empty())
      objective = "sum";
    else
      objective[group] = "sum";
  }
  if (!agreeing.empty() && random.chance(30)) loss = fmt::format("0.5 * ({}) * ({})", loss, loss);
  draft.file["loss"] = std::move(loss);
  draw_syncs(draft, objective);
  draft.file["objective"] = std::move(objective);
}

}  // namespace distgrad::fuzz
