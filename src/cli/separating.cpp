#include "cli/separating.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/version.h"
#include "diagnose/phrases.h"
#include "diagnose/separate.h"
#include "diagnose/sync_mistakes.h"
#include "gradients/objective_truths.h"
#include "report/words.h"
#include "scenario/cases.h"
#include "scenario/parse.h"
#include "scenario/read_file.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

// Larger inputs are drawn by a seed instead of written out.
constexpr std::int64_t kMostWritten = 64;
constexpr int kSeed = 58005;

// What is changed, each thing by itself no mistake of anybody's.
struct Variation {
  bool values = false;   // inputs that differ by rank and element
  bool weighted = false; // each rank's loss counts by its rank
  bool terms = false;    // the steps in question come into the loss by themselves as well
  int world_size = 0;    // 0: the case's

  std::string text() const {
    std::vector<std::string> words;
    if (values) words.push_back("values that differ by rank and element");
    if (weighted) words.push_back("losses weighted by rank");
    if (terms) words.push_back("a term of each step in question in the loss");
    if (world_size > 0) words.push_back(count_text(world_size, "rank"));
    return enumeration(words);
  }
};

// From the slightest on. Values are kept at first, as some mistakes show at zeros and ties alone.
std::vector<Variation> variations() {
  std::vector<Variation> all;
  for (const int world_size : {0, 3, 4})
    for (const bool terms : {false, true})
      for (const auto& [values, weighted] :
           {std::pair{true, false}, {false, true}, {true, true}})
        if (!terms || weighted) all.push_back({values, weighted, terms, world_size});
  return all;
}

// --- The changed file ---

Json nested(const Shape& shape, std::size_t dim, std::int64_t& next, int rank, std::size_t input) {
  if (dim == shape.size()) {
    const std::int64_t k = next++, i = static_cast<std::int64_t>(input);
    return 0.5 + 0.375 * static_cast<double>((5 * rank + 3 * k + rank * k + 2 * i) % 11);
  }
  Json list = Json::array();
  for (std::int64_t at = 0; at < shape[dim]; ++at)
    list.push_back(nested(shape, dim + 1, next, rank, input));
  return list;
}

Json tensor(const Shape& shape, int rank, std::size_t input) {
  std::int64_t next = 0;
  return nested(shape, 0, next, rank, input);
}

Json drawn(const Json& was, const Shape& shape, std::size_t input) {
  const bool has_shape = was.is_object() && was.contains("random");
  return {{"shape", has_shape ? was["random"]["shape"] : Json(shape)},
          {"kind", "uniform"},
          {"low", 0.5},
          {"high", 3.5},
          {"seed", kSeed + static_cast<int>(input)}};
}

// Other values of the same shapes; false where another number of ranks has none.
bool replace_value(Json& input, const Gradient& like, std::size_t index, bool is_local, int world_size) {
  std::set<Shape> shapes;
  std::int64_t elements = 0;
  for (const auto& part : like.parts) {
    if (!part) return false;
    shapes.insert(part->shape());
    elements += part->size();
  }
  Json changed = Json::object();
  const bool resized = is_local && static_cast<int>(like.parts.size()) != world_size;
  if (elements > kMostWritten) {
    if (shapes.size() > 1 && !(input.is_object() && input.contains("random"))) return false;
    changed["random"] = drawn(input, *shapes.begin(), index);
  } else if (!is_local) {
    changed["value"] = tensor(*shapes.begin(), 0, index);
  } else if (resized && shapes.size() > 1) {
    return false;
  } else {
    for (int rank = 0; rank < world_size; ++rank)
      changed["by_rank"].push_back(
          tensor(resized ? *shapes.begin() : like.parts[static_cast<std::size_t>(rank)]->shape(), rank, index));
  }
  if (input.is_object() && input.contains("layout")) changed["layout"] = input["layout"];
  input = std::move(changed);
  return true;
}

bool some_sync_averages(const Program& program, const std::string& axis) {
  return std::any_of(program.inputs.begin(), program.inputs.end(), [&](const Input& input) {
    return std::any_of(input.sync.begin(), input.sync.end(), [&](const auto& s) {
      return s.second == Input::Sync::kMean && (axis.empty() || s.first.empty() || s.first == axis);
    });
  });
}

Json objective_json(const Objective& objective) {
  if (objective.kind == Objective::Kind::kRank) return {{"rank", objective.rank}};
  if (objective.kind != Objective::Kind::kByAxis) return spelled(objective);
  Json by_axis = Json::object();
  for (const auto& [axis, word] : objective.axes)
    by_axis[axis] = word == Objective::Axis::kSum    ? "sum"
                    : word == Objective::Axis::kMean ? "mean"
                                                     : "replicated";
  return by_axis;
}

// The declared one, but that losses need not be equal and that each counts.
Json objective_for_unlike_losses(const Program& program, const Objective& objective) {
  const auto all = [&](const std::string& axis) {
    return some_sync_averages(program, axis) ? "mean" : "sum";
  };
  if (objective.kind != Objective::Kind::kByAxis)
    return objective.kind == Objective::Kind::kMean || objective.kind == Objective::Kind::kSum
               ? objective_json(objective)
               : Json(all(""));
  Json by_axis = objective_json(objective);
  for (auto& [axis, word] : by_axis.items())
    if (word == "replicated") word = all(axis);
  return by_axis;
}

// Steps that the rivals say something of.
std::vector<std::string> steps_in_question(const Program& program, const std::vector<Hypothesis>& rivals) {
  std::vector<std::string> steps;
  for (const Step& step : program.steps)
    if (step.collective() && std::any_of(rivals.begin(), rivals.end(), [&](const Hypothesis& h) {
          return std::any_of(h.begin(), h.end(), [&](const RuleChoice& c) { return c.step == step.name; });
        }))
      steps.push_back(step.name);
  return steps;
}

std::optional<Json> varied(Json file, const Conclusion& c, const std::vector<Hypothesis>& rivals,
                           const Variation& v) {
  const Program& program = c.asked.program;
  for (const char* key : {"note", "name", "truth", "single_device", "tolerance", "subjects", "dtype", "backend"}) file.erase(key);
  const int world_size = v.world_size > 0 ? v.world_size : program.world_size;
  if (v.world_size == program.world_size || (v.world_size > 0 && file.contains("mesh"))) return std::nullopt;
  if (!file.contains("mesh")) file["world_size"] = world_size;
  if (c.which.backend != "gloo") file["backend"] = c.which.backend;
  file["objective"] = objective_json(c.which.objective);
  std::size_t gradient = 0;
  for (const Input& input : program.inputs) {
    if (!input.requires_grad) continue;
    const Gradient& like = c.simulation.gradients[0][gradient];
    if (v.values &&
        !replace_value(file["inputs"][input.name], like, gradient, input.is_local(), world_size))
      return std::nullopt;
    ++gradient;
  }
  if (v.weighted) {
    std::string loss = fmt::format("(rank + 1) * ({})", program.loss.text);
    if (v.terms)
      for (const std::string& step : steps_in_question(program, rivals))
        loss += fmt::format(" + torch.sum(torch.sin({}) * (rank + 1))", step);
    file["loss"] = loss;
    file["objective"] = objective_for_unlike_losses(program, c.which.objective);
  }
  return file;
}

std::string on_one_line(const Json& value) {
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string text;
  for (const auto& [key, item] : value.items())
    text += (text.empty() ? "" : ", ") + (value.is_object() ? Json(key).dump() + ": " : "") +
            on_one_line(item);
  if (value.is_array()) return "[" + text + "]";
  return text.empty() ? "{}" : "{ " + text + " }";
}

// An entry a line, as people write these files.
std::string written(const Json& file) {
  std::string text;
  for (const auto& [key, value] : file.items()) {
    const bool is_list = value.is_array();
    std::string entry = on_one_line(value);
    if ((key == "inputs" || key == "steps") && !value.empty()) {
      entry.clear();
      for (const auto& [name, item] : value.items())
        entry += (entry.empty() ? "" : ",\n") + std::string(4, ' ') +
                 (is_list ? "" : Json(name).dump() + ": ") + on_one_line(item);
      entry = (is_list ? "[\n" : "{\n") + entry + (is_list ? "\n  ]" : "\n  }");
    }
    text += (text.empty() ? "" : ",\n") + std::string("  ") + Json(key).dump() + ": " + entry;
  }
  return "{\n" + text + "\n}\n";
}

// --- Whether it separates ---

struct Tried {
  Json file;
  Variation variation;
  Separation separation;
  std::vector<std::string> inputs;  // names, by gradient
};

// A right run must not be disputed either, nor the file refused.
bool is_sound(const Program& program, const Objective& objective, const Replay& replay) {
  SimulateRequest request;
  request.program = program;
  request.weights = weights_to_ask(program, objective);
  const Simulation simulation = replay(request);
  return !simulation.invalid && simulation.undecided.empty() && simulation.forward_only.empty() &&
         !check_replicated(request, objective, simulation);
}

std::optional<Tried> tried(const Json& file, const Conclusion& c, const std::vector<Hypothesis>& rivals,
                           const Variation& variation) {
  const std::optional<Json> changed = varied(file, c, rivals, variation);
  if (!changed) return std::nullopt;
  try {
    const Scenario scenario = parse_scenario(written(*changed), "separating.json");
    const std::vector<Case> cases = expand(scenario, {}, kTorchVersion);
    if (cases.empty() || !cases[0].skip_reason.empty()) return std::nullopt;
    const Program program = program_for(cases[0]);
    if (!is_sound(program, cases[0].objective, c.replay)) return std::nullopt;
    auto found = separation(program, cases[0].objective, c.which.subject == "reference", rivals, c.replay);
    if (!found) return std::nullopt;
    std::vector<std::string> inputs;
    for (const Input& input : program.inputs)
      if (input.requires_grad) inputs.push_back(input.name);
    return Tried{*changed, variation, std::move(*found), std::move(inputs)};
  } catch (const InvalidScenario&) {
    return std::nullopt;  // what this change makes of it is no program
  }
}

std::string value_text(const Gradients& gradients, const TellingElement& at) {
  const auto& array = gradients[at.input][at.rank];
  return array ? number_text((*array)[at.element], 6) : "none";
}

std::string place_text(const Tried& best, const TellingElement& at) {
  const auto& like = best.separation.truth[at.input][at.rank];
  const std::string index = like ? index_text(index_of(like->shape(), at.element)) : "";
  return fmt::format("{} on rank {}{}", best.inputs[at.input], at.rank,
                     index.empty() ? "" : " at " + index);
}

std::vector<std::string> row(const Separation& s, const Gradients& gradients) {
  std::vector<std::string> values;
  for (const TellingElement& at : s.telling) values.push_back(value_text(gradients, at));
  return values;
}

std::string note_of(const Conclusion& c, const SeparatingScenario& told) {
  std::string text = fmt::format("Tells apart what {} cannot. Gradients of {}:", c.which.id,
                                 enumeration(told.places));
  for (const auto& [label, values] : told.values)
    text += fmt::format(" {} ({})", fmt::join(values, ", "), label);
  return text + ".";
}

void tell(const Tried& best, const Conclusion& c, const std::vector<Hypothesis>& rivals,
          SeparatingScenario& out) {
  const Separation& s = best.separation;
  out.how = best.variation.text();
  for (const TellingElement& at : s.telling) out.places.push_back(place_text(best, at));
  out.values.push_back({"truth", row(s, s.truth)});
  for (std::size_t h = 0; h < rivals.size(); ++h) {
    out.values.push_back({label_of(rivals[h]), row(s, s.held[h])});
    if (s.of[h] != h)
      out.alike.push_back(fmt::format("{} and {}", label_of(rivals[s.of[h]]), label_of(rivals[h])));
  }
  Json file = {{"note", note_of(c, out)}};
  for (const auto& [key, value] : best.file.items()) file[key] = value;
  file["subjects"] = {{c.which.subject, "match"}};
  out.text = written(file);
}

}  // namespace

std::string label_of(const Hypothesis& hypothesis) {
  std::string text;
  for (const RuleChoice& choice : hypothesis) {
    std::string rule = choice.rule;
    if (sync_mistake_named(rule)) {
      rule[4] = ' ';  // "sync:twice:dp"
      while (rule.ends_with(':')) rule.pop_back();
      std::replace(rule.begin(), rule.end(), ':', ' ');
    }
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", choice.step, rule);
  }
  return text;
}

SeparatingScenario separating_scenario(const Conclusion& c, const std::vector<Hypothesis>& rivals) {
  SeparatingScenario out;
  for (const Hypothesis& rival : rivals) out.rivals.push_back(label_of(rival));
  const Json file = Json::parse(read_scenario_file(c.which.scenario->file));
  std::optional<Tried> best;
  for (const Variation& variation : variations()) {
    auto next = tried(file, c, rivals, variation);
    if (!next) continue;
    ++out.tried;
    if (!best || next->separation.kinds > best->separation.kinds) best = std::move(next);
    if (best->separation.kinds == rivals.size()) break;
  }
  if (best && best->separation.kinds > 1) tell(*best, c, rivals, out);
  return out;
}

}  // namespace distgrad
