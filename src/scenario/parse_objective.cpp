// Reads the objective, as the file and as the command line spell it.

#include <array>

#include "base/error.h"
#include "base/whole_number.h"
#include "scenario/objective_text.h"
#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

using Kind = Objective::Kind;
using Word = Objective::Axis;

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {"sum", "mean", "replicated"};
  return all;
}

std::optional<Word> word_named(std::string_view name) {
  if (name == "sum") return Word::kSum;
  if (name == "mean") return Word::kMean;
  if (name == "replicated") return Word::kReplicated;
  return std::nullopt;
}

Objective plain(Word word) {
  constexpr std::array kKinds = {Kind::kSum, Kind::kMean, Kind::kReplicated};
  return {.kind = kKinds[static_cast<std::size_t>(word)], .rank = 0, .axes = {}};
}

std::string choices_hint() { return "; it is one of " + objective_choices(); }

Objective read_by_axis(const JsonValue& value, Parts& parts) {
  Objective objective{.kind = Kind::kByAxis, .rank = 0, .axes = {}};
  for (const MeshAxis& axis : parts.scenario.mesh) {
    const auto member = value.member(axis.name);
    if (!member) {
      parts.problems.missing(value, axis.name,
                             "is missing; an objective by axis names every mesh axis");
      continue;
    }
    const auto word = read_name_among(*member, "objective", words(), parts.problems);
    if (word) objective.axes.emplace_back(axis.name, *word_named(*word));
  }
  return objective;
}

void read_object_form(const JsonValue& value, Parts& parts) {
  if (const auto rank = value.member("rank")) {
    if (value.size() > 1) {
      parts.problems.at(value,
                        "{ \"rank\": k } stands alone: only rank k's loss is differentiated");
      return;
    }
    const auto k = read_integer(*rank, 0, kMaxWorldSize - 1, parts.problems);
    parts.scenario.objective = {
        .kind = Kind::kRank, .rank = static_cast<int>(k.value_or(0)), .axes = {}};
  } else if (value.size() == 0 || parts.scenario.mesh.empty()) {
    parts.problems.at(value,
                      value.size() == 0
                          ? "is empty" + choices_hint()
                          : "is by mesh axis, but the scenario has no \"mesh\"" + choices_hint());
  } else if (check_axes(value, parts.scenario, parts.problems)) {
    parts.scenario.objective = read_by_axis(value, parts);
  }
}

}  // namespace

std::string objective_choices() {
  return "\"sum\" (all ranks' losses summed: torch.distributed.nn, functional collectives, "
         "mpi4torch, fvcore, JAX psum under pmap), \"mean\" (their mean: DistributedDataParallel, "
         "Horovod), \"replicated\" (one loss that every rank computes: Megatron tensor "
         "parallelism, mpi4jax, torch_xla, flash-attention), { \"rank\": k } (rank k's loss alone: "
         "only rank k runs backward), or a word for each mesh axis: { \"dp\": \"mean\", \"tp\": "
         "\"replicated\" } (data x tensor parallel training)";
}

void read_objective(Parts& parts) {
  const auto value = parts.key("objective");
  if (!value) {
    parts.problems.missing(parts.root, "objective", "is missing" + choices_hint());
  } else if (value->is_object()) {
    read_object_form(*value, parts);
  } else if (const auto word = value->is_text() ? word_named(value->text()) : std::nullopt) {
    parts.scenario.objective = plain(*word);
  } else {
    std::string hint = value->is_text() ? name_hint(value->text(), words()) : std::string();
    if (value->is_text() && value->text().starts_with("rank")) hint = "; write { \"rank\": 0 }";
    parts.problems.at(*value, "unknown objective, " + description(*value) +
                                  (hint.empty() ? choices_hint() : hint));
  }
}

Objective parse_objective_text(std::string_view text) {
  if (const auto word = word_named(text)) return plain(*word);
  if (constexpr std::string_view kRank = "rank:"; text.starts_with(kRank)) {
    const auto rank = whole_number<int>(text.substr(kRank.size()));
    if (rank && *rank >= 0) return {.kind = Kind::kRank, .rank = *rank, .axes = {}};
    throw UserError("objective " + in_quotes(text) +
                    ": after rank: comes the number of a rank, as in rank:0");
  }
  Objective objective{.kind = Kind::kByAxis, .rank = 0, .axes = {}};
  std::string_view rest = text;
  while (rest.find('=') != std::string_view::npos) {
    const std::string_view part = rest.substr(0, rest.find('+'));
    const std::string_view axis = part.substr(0, part.find('='));
    const std::string_view name = part.size() > axis.size() ? part.substr(axis.size() + 1) : "";
    const auto word = word_named(name);
    if (axis.empty() || !word)
      throw UserError("objective " + in_quotes(text) + ": unknown objective " + in_quotes(name) +
                      " for axis " + in_quotes(axis) + name_hint(name, words()));
    objective.axes.emplace_back(std::string(axis), *word);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (rest.empty() && text.back() != '+') return objective;
  }
  std::vector<std::string> spellings = words();
  spellings.emplace_back("rank:0");
  std::string hint = name_hint(text, spellings);
  if (hint.empty())
    hint = "; it is sum, mean, replicated, rank:K or, by mesh axis, dp=mean+tp=replicated";
  throw UserError("unknown objective " + in_quotes(text) + hint);
}

}  // namespace distgrad
