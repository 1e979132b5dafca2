#include "cli/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/source_place.h"
#include "report/summary.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;
using Tone = Picture::Tone;

constexpr int kMostColumns = 64;  // ranks that a picture shows
constexpr std::size_t kMostRows = 200;

std::string joined(const Json& sentences) {
  std::string text;
  for (const Json& sentence : sentences)
    text += (text.empty() ? "" : " ") + sentence.get<std::string>();
  return text;
}

FindingName rule_of(const Json& wrong) {
  const auto kind = wrong.at("kind").get<std::string>();
  if (kind == "zero") return "no-gradient";
  if (kind == "nondeterministic") return "nondeterministic";
  if (kind == "copies") return "unsynchronised";
  // Clipping by another norm scales all gradients.
  if (wrong.at("factors").empty() && kind != "clipping") return "other-gradient";
  return "scaled";
}

// Reads {rank: factor}.
std::map<int, double> factors_of(const Json& wrong) {
  std::map<int, double> factors;
  for (const auto& [rank, factor] : wrong.at("factors").items())
    if (factor.is_number()) factors[std::stoi(rank)] = factor.get<double>();
  return factors;
}

Finding finding_of(const Json& wrong) {
  Finding finding{.rule = rule_of(wrong), .text = joined(wrong.at("text"))};
  const std::map<int, double> factors = factors_of(wrong);
  for (const auto& [rank, factor] : factors)
    if (factor != 1) finding.ranks.push_back(rank);
  const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end(), by_value);
  if (!factors.empty() && most->second - least->second <= 0.01 * std::abs(most->second))
    finding.factor = least->second;
  return finding;
}

// Says why no verdict was reached, by parameter.
std::map<std::string, std::string> open_ones(const Json& report) {
  std::map<std::string, std::string> open;
  const auto add = [&](const char* key, const std::string& why) {
    for (const Json& name : report.at(key)) open[name.get<std::string>()] = why;
  };
  if (const auto reason = report.at("reason").get<std::string>(); !reason.empty())
    add("parameters", reason);
  add("not_asked", "some of these are wrong, and were not told apart in the time");
  add("ambiguous", "right if the ranks hold pieces, wrong if they hold copies");
  add("too_small", "too small to be measured beside the rounding of the loss");
  for (const auto& [name, why] : report.at("undecided").items())
    open[name] = why.get<std::string>();
  return open;
}

std::vector<CaseResult> cases_of(const Json& report, const Scenario& step, bool strict) {
  const std::map<std::string, std::string> open = open_ones(report);
  std::vector<CaseResult> cases;
  for (const Json& parameter : report.at("parameters")) {
    const auto name = parameter.get<std::string>();
    CaseResult result;
    result.which.scenario = &step;
    result.which.id = step.file + ":" + name;
    result.which.subject = step.file;
    result.which.world_size = std::max(1, report.at("ranks").get<int>());
    result.as_expected = true;
    for (const Json& wrong : report.at("wrong"))
      if (const Json& names = wrong.at("parameters");
          std::find(names.begin(), names.end(), name) != names.end())
        result.findings.push_back(finding_of(wrong));
    const auto& disputed = report.at("disputed");
    if (!result.findings.empty()) {
      result.verdict = Verdict::kMismatch;
      result.as_expected = false;
    } else if (std::find(disputed.begin(), disputed.end(), name) != disputed.end()) {
      result.verdict = Verdict::kDisputed;
      result.why = "right if what the step detaches is a constant, and else wrong";
      if (strict) {
        result.as_expected = false;
      } else {
        result.as_expected.reset();
      }
    } else if (const auto why = open.find(name); why != open.end()) {
      result.verdict = Verdict::kDisputed;
      result.why = "not decided: " + why->second;
      result.as_expected = false;  // nobody is blamed, and nothing is known to be right
    }
    cases.push_back(std::move(result));
  }
  return cases;
}

// Says what a place's state means, and how it is shown.
struct StateRow {
  std::string_view name, text;
  Tone tone;
};

constexpr StateRow kStates[] = {
    {"right", "the cotangent is right", Tone::kRight},
    {"wrong", "the cotangent is wrong", Tone::kWrong},
    {"shares", "of the ranks' cotangents the sum is right, and not each", Tone::kUnclear},
    {"not decided", "not decided", Tone::kNone},
    {"not asked", "not asked", Tone::kNone},
};

const StateRow& state_of(const Json& place) {
  const auto name = place.at("state").get<std::string>();
  const auto found = std::find_if(std::begin(kStates), std::end(kStates),
                                  [&](const StateRow& row) { return row.name == name; });
  return found == std::end(kStates) ? kStates[std::size(kStates) - 1] : *found;
}

bool holds(const Json& place, int rank) {
  const Json& groups = place.at("copies");
  return std::any_of(groups.begin(), groups.end(), [&](const Json& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
}

Picture::Row row_of(const Json& place, int ranks) {
  const StateRow& state = state_of(place);
  const auto call = place.at("call").get<int>();
  auto module = place.at("module").get<std::string>();
  if (module.empty()) module = "the model";
  Picture::Row row{module + (call > 0 ? fmt::format(" (call {})", call + 1) : ""), {}};
  for (int rank = 0; rank < ranks; ++rank) {
    if (holds(place, rank)) {
      row.squares.push_back({"", state.tone, std::string(state.text)});
    } else {
      row.squares.push_back({"-", Tone::kNone, "the rank has no such output"});
    }
  }
  std::string text(state.text);
  const Json& factor = place.at("factor");
  if (state.tone == Tone::kWrong && factor.is_number())
    text = fmt::format("the cotangent is {:.4g} times the right one", factor.get<double>());
  if (place.at("departs").get<bool>()) text = "backward departs here: " + text;
  row.squares.push_back({text, Tone::kNone, ""});
  return row;
}

std::optional<Picture> picture_of(const Json& report) {
  const Json& places = report.at("places");
  if (places.empty()) return std::nullopt;
  Picture picture;
  const int world_size = report.at("ranks").get<int>();
  const int ranks = world_size > kMostColumns ? 0 : world_size;
  picture.title = ranks > 0 ? "Modules' outputs by ranks, in the order of backward"
                            : "Modules' outputs, in the order of backward";
  picture.legend =
      "Measured by moving each output and running the step again. Blue: the cotangent that "
      "backward brings there is right; red: it is wrong.";
  for (int rank = 0; rank < ranks; ++rank) picture.columns.push_back(std::to_string(rank));
  picture.columns.emplace_back("which means that");
  for (std::size_t i = 0; i < std::min(places.size(), kMostRows); ++i)
    picture.rows.push_back(row_of(places[i], ranks));
  return picture;
}

}  // namespace

StepReport read_step_report(const std::string& text, const std::string& path, bool strict) {
  StepReport made;
  made.report.unit = "parameter";
  try {
    const Json report = Json::parse(text);
    made.step = std::make_unique<Scenario>(scenario_at(report.at("place"), "step"));
    made.report.where = report.at("where");
    made.report.cases = cases_of(report, *made.step, strict);
    made.report.picture = picture_of(report);
    made.report.printed = report.at("text").get<std::string>();
    made.report.summary = summary_of(made.report.cases);
    made.report.summary.elapsed_s = report.at("seconds").get<double>();
  } catch (const Json::exception&) {
    throw UserError("step: " + path + " is no report of check_gradients");
  }
  return made;
}

}  // namespace distgrad
