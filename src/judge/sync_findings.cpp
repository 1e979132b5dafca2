#include "judge/sync_findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "judge/closeness.h"
#include "judge/phrases.h"
#include "judge/sync_mistakes.h"

namespace distgrad {
namespace {

using Kind = SyncMistake::Kind;
using Sync = Input::Sync;

// Both sides were computed in float64, but in different orders.
constexpr double kRoundings = 0x1p-46;

Finding bare(const Evidence& evidence, FindingName rule, const std::optional<Scaling>& scaling) {
  return {rule, "", "", evidence.differing_ranks(), scaling ? scaling->common : std::nullopt, ""};
}

const Input& input_named(const Evidence& evidence, const std::string& name) {
  return **std::find_if(evidence.inputs().begin(), evidence.inputs().end(),
                        [&](const Input* input) { return input->name == name; });
}

// --- Another sync in the file ---

std::string_view word(Sync how) { return how == Sync::kMean ? "mean" : "sum"; }

Layout& layout_along(Input& input, const std::string& axis) {
  for (AxisLayout& entry : input.layout)
    if (entry.axis == axis) return entry.layout;
  return input.layout[0].layout;
}

// Spells a layout and sync for the whole world by mesh axis.
Input by_axis(const Program& program, Input input) {
  if (input.layout.size() != 1 || !input.layout[0].axis.empty() || program.mesh().empty())
    return input;
  const Layout everywhere = input.layout[0].layout;
  const auto sync = input.sync;
  input.layout.clear();
  input.sync.clear();
  for (const Group* group : program.mesh()) {
    input.layout.push_back({group->name, everywhere});
    for (const auto& [axis, how] : sync)
      if (axis.empty() || axis == group->name) input.sync.push_back({group->name, how});
  }
  return input;
}

std::string along(const std::string& axis) { return axis.empty() ? "" : " along " + axis; }

struct Change {
  Input input;  // the input as it should be
  FindingName finding;
  std::string mistake, remedy;  // sentences, the first without its beginning
};

std::string written(const Input& input) {
  std::vector<std::string> entries;
  for (const auto& [axis, how] : input.sync)
    entries.push_back(axis.empty() ? fmt::format("\"{}\"", word(how))
                                   : fmt::format("\"{}\": \"{}\"", axis, word(how)));
  const bool bare = input.sync.size() == 1 && input.sync[0].first.empty();
  const std::string value = bare ? entries[0] : fmt::format("{{ {} }}", fmt::join(entries, ", "));
  return fmt::format("\"sync\": {{ \"{}\": {} }}", input.name, value);
}

// Changes how the sync reduces.
Change with_other_op(const Evidence& evidence, const Input& input, std::size_t entry) {
  Change change{input, "scaled", "", ""};
  auto& [axis, how] = change.input.sync[entry];
  const bool averages = how == Sync::kMean;
  how = averages ? Sync::kSum : Sync::kMean;
  change.mistake = fmt::format(
      "the file's sync {} the gradient of {} over the ranks{}, but the truth under the declared "
      "objective \"{}\" is their {}",
      averages ? "averages" : "sums", input.name, along(axis), spelled(evidence.which().objective),
      averages ? "sum" : "mean");
  change.remedy =
      fmt::format("Write {}, or declare the objective that is meant.", written(change.input));
  return change;
}

// Drops a sync, for ranks that already have the whole gradient without it.
Change without(const Input& input, std::size_t entry) {
  Change change{input, "double-reduction", "", ""};
  const std::string axis = input.sync[entry].first;
  layout_along(change.input, axis).kind = Layout::Kind::kInvariant;
  change.input.sync.erase(change.input.sync.begin() + static_cast<std::ptrdiff_t>(entry));
  change.mistake = fmt::format(
      "backward gives each rank the whole gradient of {} already, and the file's sync sums it over "
      "the ranks{} once more",
      input.name, along(axis));
  change.remedy =
      "Leave that sync out and give the input the layout \"invariant\" there, or let the sync "
      "be \"mean\".";
  return change;
}

Change along_other(const Input& input, std::size_t entry, const std::string& axis) {
  Change change{input, "wrong-group", "", ""};
  const std::string before = input.sync[entry].first;
  layout_along(change.input, before).kind = Layout::Kind::kInvariant;
  layout_along(change.input, axis).kind = Layout::Kind::kReplicate;
  change.input.sync[entry].first = axis;
  change.mistake = fmt::format(
      "the file's sync reduces the gradient of {} along {}, where each rank has all of it, and not "
      "along {}, where each has its own share",
      input.name, before, axis);
  change.remedy = fmt::format("Write {}.", written(change.input));
  return change;
}

// Returns the likelier changes first.
std::vector<Change> changes_of(const Evidence& evidence, const Input& declared) {
  const Input input = by_axis(evidence.program(), declared);
  std::vector<Change> changes;
  for (std::size_t entry = 0; entry < input.sync.size(); ++entry) {
    if (input.sync[entry].second == Sync::kSum) changes.push_back(without(input, entry));
    changes.push_back(with_other_op(evidence, input, entry));
    for (const AxisLayout& other : input.layout) {
      const bool is_synced = std::any_of(input.sync.begin(), input.sync.end(),
                                         [&](const auto& s) { return s.first == other.axis; });
      if (!is_synced && other.layout.kind != Layout::Kind::kShard)
        changes.push_back(along_other(input, entry, other.axis));
    }
  }
  return changes;
}

// Returns true if the changed input matches. Backward may then start with other weights.
bool makes_right(const Evidence& evidence, const GradientByRank& shares, std::size_t i,
                 const Input& changed) {
  const Objective& objective = evidence.which().objective;
  const bool divides = evidence.divides_replicated();
  Program program = evidence.program();
  const std::vector<double> before = backward_weights(program, objective, divides);
  std::size_t at = 0;
  while (program.inputs[at].name != changed.name) ++at;
  program.inputs[at] = changed;
  const std::vector<double> after = backward_weights(program, objective, divides);
  const double weight = before[0] == after[0] || before[0] == 0 ? 1 : after[0] / before[0];
  const double divisor = post_sync_divisors(program, objective, divides)[at];
  const auto held = synchronised(program, changed, {}, divided(shares, 1 / weight));
  const std::optional<Array>& truth = evidence.comparison().gradients[i].truth_full;
  if (!held || !truth) return false;
  const double slack = kRoundings * largest_magnitude(truth->values()) + evidence.largest_bound(i);
  for (const Part& part : assemble(program, changed, truth->shape(), divided(*held, divisor))) {
    if (!part.value || part.value->shape() != truth->shape()) return false;
    const auto bound = [&](std::size_t) { return slack; };
    if (!difference(part.value->values(), truth->values(), bound).equal) return false;
  }
  return true;
}

GradientByRank shares_of(const DistributedRun& run, std::size_t input) {
  GradientByRank shares;
  for (const RankResult& rank : run.ranks) shares.push_back(rank.shares[input]);
  return shares;
}

// Returns true if the ranks hold what `synchronised` makes of these shares, but for the roundings
// of a sum over the ranks and for `slack`.
bool is_held(const Evidence& evidence, std::size_t i, const std::vector<SyncMistake>& mistakes,
             const GradientByRank& shares, const GradientByRank& observed, double slack = 0) {
  const auto held = synchronised(evidence.program(), *evidence.inputs()[i], mistakes, shares);
  if (!held) return false;
  double largest = 0;
  for (const auto& share : shares)
    if (share) largest = std::max(largest, largest_magnitude(share->values()));
  const double roundings =
      2.0 * (2 + evidence.program().world_size) * unit_roundoff(evidence.program().dtype);
  const auto bound = [&](std::size_t) { return roundings * largest + slack; };
  for (std::size_t r = 0; r < held->size(); ++r) {
    const std::optional<Array>&wanted = (*held)[r], &seen = observed[r];
    if (wanted.has_value() != seen.has_value()) return false;
    if (wanted && (seen->shape() != wanted->shape() ||
                   !difference(seen->values(), wanted->values(), bound).equal))
      return false;
  }
  return true;
}

GradientByRank gradients_of(const DistributedRun& run, std::size_t input) {
  GradientByRank gradients;
  for (const RankResult& rank : run.ranks) gradients.push_back(rank.gradients[input]);
  return gradients;
}

// Groups the inputs that one mistake explains, so that one text names them.
struct MistakenInputs {
  std::string mistake;  // as sync_mistakes_of() spells it; empty: none of these
  std::vector<std::string> inputs;
};

void note(std::vector<MistakenInputs>& all, const std::string& mistake, const std::string& input) {
  const auto same = std::find_if(all.begin(), all.end(),
                                 [&](const MistakenInputs& g) { return g.mistake == mistake; });
  if (same == all.end())
    all.push_back({mistake, {input}});
  else
    same->inputs.push_back(input);
}

std::vector<MistakenInputs> mistaken_inputs_of(const Evidence& evidence,
                                               const DistributedRun& run) {
  std::vector<MistakenInputs> all;
  for (std::size_t i = 0; i < evidence.inputs().size(); ++i) {
    const Input& input = *evidence.inputs()[i];
    const GradientByRank shares = shares_of(run, i), observed = gradients_of(run, i);
    if (input.sync.empty() || is_held(evidence, i, {}, shares, observed)) continue;
    bool is_named = false;
    for (const std::string& mistake : sync_mistakes_of(evidence.program(), input))
      if (is_held(evidence, i, {*sync_mistake_named(mistake)}, shares, observed)) {
        note(all, mistake, input.name);
        is_named = true;
      }
    if (!is_named) note(all, "", input.name);
  }
  return all;
}

std::vector<Finding> findings_for(const Evidence& evidence, const std::vector<MistakenInputs>& all,
                                  const std::optional<Scaling>& scaling) {
  std::vector<Finding> findings;
  for (const auto& [text, inputs] : all) {
    if (text.empty()) {
      findings.push_back(bare(evidence, "unexplained", scaling));
      findings.back().text = fmt::format(
          "{}: what the all_reduce of the gradient of {} after backward gave is not made of what "
          "the ranks had before it.",
          how_they_differ(evidence, scaling), enumeration(inputs));
      continue;
    }
    const SyncMistake mistake = *sync_mistake_named(text);
    Finding finding = bare(evidence, finding_of(mistake.kind), scaling);
    if (mistake.kind == Kind::kWithout || mistake.kind == Kind::kAlone)
      finding.ranks = {mistake.rank};
    finding.text = fmt::format("{}: {}", how_they_differ(evidence, scaling),
                               text_of(evidence.program(), input_named(evidence, inputs[0]),
                                       mistake, enumeration(inputs)));
    findings.push_back(std::move(finding));
  }
  return findings;
}

// Returns what each rank's backward gives of each input if every collective's is its adjoint.
std::optional<std::vector<Gradient>> adjoint_shares(Machine& machine, const Evidence& evidence) {
  SimulateRequest request;
  request.program = evidence.program();
  request.weights = {backward_weights(evidence.program(), evidence.which().objective,
                                      evidence.divides_replicated())};
  request.leaves_by_rank = true;
  request.with_bounds = false;
  request.with_guards = false;
  Simulation simulation = machine.simulate(request);
  if (simulation.invalid || simulation.gradients.size() != 1 ||
      simulation.gradients[0].size() != evidence.inputs().size())
    return std::nullopt;
  return std::move(simulation.gradients[0]);
}

}  // namespace

bool has_invariant_axis(const Input& input) {
  return std::any_of(input.layout.begin(), input.layout.end(), [](const AxisLayout& entry) {
    return entry.layout.kind == Layout::Kind::kInvariant;
  });
}

std::vector<Finding> sync_findings(const Evidence& evidence, const DistributedRun& run,
                                   const std::optional<Scaling>& scaling) {
  return findings_for(evidence, mistaken_inputs_of(evidence, run), scaling);
}

std::optional<std::vector<Finding>> invariant_findings(Machine& machine, const Evidence& evidence,
                                                       const std::optional<Scaling>& scaling) {
  const std::vector<std::size_t> differing = evidence.differing_inputs();
  if (!std::all_of(differing.begin(), differing.end(),
                   [&](std::size_t i) { return has_invariant_axis(*evidence.inputs()[i]); }))
    return std::nullopt;
  const auto shares = adjoint_shares(machine, evidence);
  if (!shares) return std::nullopt;
  std::vector<MistakenInputs> all;
  for (const std::size_t i : differing) {
    const Input& input = *evidence.inputs()[i];
    const GradientByRank& observed = evidence.comparison().gradients[i].observed_by_rank;
    const double slack = 2 * evidence.largest_bound(i);
    bool is_explained = is_held(evidence, i, {}, (*shares)[i].parts, observed, slack);
    for (const std::string& mistake : sync_mistakes_of(evidence.program(), input))
      if (!is_explained && is_held(evidence, i, {*sync_mistake_named(mistake)}, (*shares)[i].parts,
                                   observed, slack)) {
        note(all, mistake, input.name);
        is_explained = true;
      }
    if (!is_explained) return std::nullopt;
  }
  return findings_for(evidence, all, scaling);
}

std::vector<Finding> file_sync_findings(const Evidence& evidence, const DistributedRun& run,
                                        const std::optional<Scaling>& scaling) {
  std::vector<Finding> findings;
  for (const std::size_t i : evidence.differing_inputs()) {
    for (const Change& change : changes_of(evidence, *evidence.inputs()[i])) {
      if (!makes_right(evidence, shares_of(run, i), i, change.input)) continue;
      Finding finding = bare(evidence, change.finding, scaling);
      finding.text = fmt::format("{}: {}. {}", how_they_differ(evidence, scaling), change.mistake,
                                 change.remedy);
      findings.push_back(std::move(finding));
      break;
    }
  }
  return findings;
}

}  // namespace distgrad
