#include "scenario/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "model/backends.h"
#include "scenario/parts.h"
#include "scenario/printable.h"
#include "scenario/read_file.h"
#include "scenario/world.h"

namespace distgrad {
namespace {

constexpr std::size_t kMostCases = 100'000;

// Reads one value or a list of different ones.
template <class T, class Read>
std::vector<T> read_one_or_more(const JsonValue& value, Problems& problems, const Read& read) {
  std::vector<T> result;
  if (value.is_list() && value.size() == 0)
    problems.at(value, "is an empty list; give at least one, or leave it out");
  for (const JsonValue& item : value.is_list() ? value.children() : std::vector<JsonValue>{value}) {
    if (problems.full()) break;
    const std::optional<T> one = read(item);
    if (!one) continue;
    if (std::find(result.begin(), result.end(), *one) != result.end()) {
      problems.at(item, description(item) + " stands in the list twice");
    } else {
      result.push_back(*one);
    }
  }
  return result;
}

template <class Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

void read_dtypes(Parts& parts) {
  parts.scenario.dtypes = {DType::kFloat64};
  const auto value = parts.key("dtype");
  if (!value) return;
  const std::vector<std::string> names = names_of(kDTypes);
  parts.scenario.dtypes =
      read_one_or_more<DType>(*value, parts.problems, [&](const JsonValue& item) {
        const auto name = read_name_among(item, "dtype", names, parts.problems);
        return name ? dtype_named(*name) : std::nullopt;
      });
}

void read_backends(Parts& parts) {
  parts.scenario.backends = {"gloo"};
  const auto value = parts.key("backend");
  if (!value) return;
  const std::vector<std::string> names = names_of(kBackends);
  parts.scenario.backends =
      read_one_or_more<std::string>(*value, parts.problems, [&](const JsonValue& item) {
        return read_name_among(item, "backend", names, parts.problems);
      });
}

void read_format(Parts& parts) {
  const auto value = parts.key("format");
  if (!value || (value->is_number() && value->integer() == 1)) return;
  parts.problems.at(*value,
                    "must be 1, the format that this distgrad reads, not " + description(*value));
}

void read_texts(Parts& parts) {
  parts.scenario.name = std::filesystem::path(parts.scenario.file).stem().string();
  if (const auto name = parts.key("name")) {
    parts.scenario.name = read_text(*name, parts.problems).value_or("");
    if (name->is_text() && name->text().empty())
      parts.problems.at(*name, "is empty; leave it out for the file's name");
  }
  if (const auto note = parts.key("note"))
    parts.scenario.note = read_text(*note, parts.problems).value_or("");
  if (const auto schema = parts.key("$schema")) read_text(*schema, parts.problems);  // for editors
}

void read_timeout(Parts& parts) {
  constexpr double kLongest = 7 * 24 * 3600;
  const auto value = parts.key("timeout_s");
  const auto seconds = value ? read_number(*value, parts.problems) : std::nullopt;
  if (!seconds) return;
  parts.scenario.timeout_s = *seconds;
  if (*seconds <= 0 || *seconds > kLongest)
    parts.problems.at(*value, fmt::format("must be more than 0 and at most {} seconds, not {}",
                                          kLongest, printable(value->written(), 30)));
}

void check_worlds(const JsonTree& tree, Parts& parts) {
  const Scenario& scenario = parts.scenario;
  const auto add = [&](const WorldProblem& problem) {
    parts.problems.add(tree.nearest(problem.pointer).position(), problem.pointer, problem.message);
  };
  for (const int size : scenario.world_sizes) {
    for (const WorldProblem& problem : problems_with_world(scenario, size, Figures::kCheck))
      add(problem);
    if (const auto problem = problem_with_objective(scenario, scenario.objective, size))
      add(*problem);
  }
  const std::size_t cases = scenario.world_sizes.size() * scenario.dtypes.size() *
                            scenario.backends.size() * scenario.subjects.size();
  if (cases > kMostCases)
    parts.problems.at(parts.root, fmt::format("the lists multiply to {} cases; at most {} are run",
                                              cases, kMostCases));
}

// Notes the places that later messages may name: every member and step, and texts in short lists (a
// shape's expressions). `pointer` is the value's.
void remember_positions(const JsonValue& value, const std::string& pointer,
                        std::map<std::string, SourcePosition>& positions) {
  constexpr std::size_t kShort = 64;
  positions.emplace(pointer, value.position());
  std::size_t place = 0;
  for (const JsonValue& child : value.children()) {
    const std::size_t here = place++;
    if (value.is_object() || child.is_object() || (child.is_text() && value.size() <= kShort))
      remember_positions(
          child,
          pointer + "/" + (value.is_object() ? pointer_token(child.key()) : std::to_string(here)),
          positions);
  }
}

}  // namespace

Scenario parse_scenario(std::string_view text, std::string file) {
  Scenario scenario;
  scenario.file = file;
  Problems problems(std::move(file));
  if (text.size() > kMaxFileBytes) {
    problems.add({}, "", fmt::format("the file is larger than {} MiB", kMaxFileBytes >> 20));
    throw InvalidScenario(problems.take());
  }
  std::vector<JsonProblem> in_json;
  const JsonTree tree(text, in_json);
  for (JsonProblem& problem : in_json)
    problems.add(problem.position, problem.pointer, std::move(problem.message));
  const auto root = tree.root();
  if (root && !root->is_object())
    problems.at(*root, "a scenario is an object, { ... }, not " + description(*root));
  if (!root || !root->is_object()) throw InvalidScenario(problems.take());

  Parts parts{*root, scenario, problems};
  check_keys(*root,
             {"$schema", "format", "name", "note", "world_size", "mesh", "groups", "dtype",
              "backend", "inputs", "steps", "loss", "objective", "sync", "tolerance", "truth",
              "single_device", "subjects", "timeout_s"},
             problems);
  if (problems.full()) throw InvalidScenario(problems.take());
  read_format(parts);
  read_texts(parts);
  read_names(parts);
  read_world(parts);
  read_dtypes(parts);
  read_backends(parts);
  read_inputs(parts);
  read_sync(parts);
  read_steps(parts);
  read_single_device(parts);
  read_objective(parts);
  read_truth(parts);
  read_tolerance(parts);
  read_subjects(parts);
  read_timeout(parts);
  if (problems.empty()) check_worlds(tree, parts);
  if (!problems.empty()) throw InvalidScenario(problems.take());
  remember_positions(*root, "", scenario.positions);
  return scenario;
}

Scenario load_scenario(const std::string& path) {
  return parse_scenario(read_scenario_file(path), path);
}

}  // namespace distgrad
