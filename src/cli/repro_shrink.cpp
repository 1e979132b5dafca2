#include "cli/repro_shrink.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "cli/say.h"
#include "fuzz/shrink.h"
#include "scenario/cases.h"
#include "scenario/parse.h"
#include "scenario/read_file.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

Json objective_json(const Objective& objective) {
  if (objective.kind == Objective::Kind::kRank) return {{"rank", objective.rank}};
  if (objective.kind != Objective::Kind::kByAxis) return spelled(objective);
  static constexpr const char* kWords[] = {"sum", "mean", "replicated"};
  Json by_axis;
  for (const auto& [axis, word] : objective.axes) by_axis[axis] = kWords[static_cast<int>(word)];
  return by_axis;
}

// Holds what a reduction must keep.
struct ShownMistake {
  Verdict verdict{};
  FindingName rule;
  std::string collective;
  std::optional<ErrorKind> error;

  bool operator==(const ShownMistake&) const = default;
};

ShownMistake shown_by(const CaseResult& result) {
  ShownMistake shown;
  shown.verdict = result.verdict;
  if (result.error) shown.error = result.error->kind;
  if (result.findings.empty()) return shown;
  shown.rule = result.findings.front().rule;
  shown.collective = result.findings.front().collective;
  return shown;
}

// Runs batches of scenarios; the simulators and ranks stay from one batch to the next.
class Runs {
 public:
  Runs(const Case& which, const ShownMistake& wanted, Interpreters& interpreters)
      : wanted_(wanted),
        verifier_({&which, 1}, {.interpreters = &interpreters}),
        original_(which) {}

  std::vector<bool> operator()(const std::vector<Json>& documents) {
    std::vector<std::unique_ptr<Scenario>> scenarios;
    std::vector<Case> cases;
    std::map<std::string, std::size_t> document_of_case;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      scenarios.push_back(std::make_unique<Scenario>(
          parse_scenario(documents[i].dump(), fmt::format("candidate {}", i))));
      // The document itself names its subject; without it, it is another scenario.
      Overrides overrides;
      overrides.allow_code = true;  // it ran before
      std::vector<Case> expanded = expand(*scenarios.back(), overrides, kTorchVersion);
      if (expanded.size() != 1 || !expanded[0].skip_reason.empty()) continue;
      expanded[0].python = original_.python;
      expanded[0].timeout_s = original_.timeout_s;
      document_of_case[expanded[0].id] = i;
      cases.push_back(std::move(expanded[0]));
    }
    std::vector<bool> shows(documents.size(), false);
    Listener listener{[&](const CaseResult& result) {
      shows[document_of_case.at(result.which.id)] = shown_by(result) == wanted_;
    }};
    if (!cases.empty()) verifier_.verify(cases, listener);
    return shows;
  }

 private:
  struct Listener : VerifyListener {
    explicit Listener(std::function<void(const CaseResult&)> call) : call_(std::move(call)) {}
    void on_result(CaseResult result) override { call_(result); }
    void on_invalid(InvalidFile) override {}  // it means nothing, so it shows nothing
    void on_progress(std::size_t, std::size_t) override {}
    std::function<void(const CaseResult&)> call_;
  };

  ShownMistake wanted_;
  Verifier verifier_;
  const Case& original_;
};

void tell(const Shrunk& shrunk, const Json& before) {
  complain("{} of {} characters left after {} reductions; {} scenarios were run\n",
           shrunk.document.dump().size(), before.dump().size(), shrunk.reductions.size(),
           shrunk.tried);
  for (const std::string& reduction : shrunk.reductions) complain("  {}\n", reduction);
  if (!shrunk.is_minimal)
    complain("distgrad: stopped before it was minimal; --shrink on what is written goes on\n");
}

}  // namespace

Json document_of(const Case& which) {
  Json document = Json::parse(read_scenario_file(which.scenario->file));
  if (!document.contains("mesh")) document["world_size"] = which.world_size;
  document["dtype"] = traits(which.dtype).name;
  if (which.dtype == DType::kFloat64) document.erase("dtype");
  document["backend"] = which.backend;
  if (which.backend == "gloo") document.erase("backend");
  document["objective"] = objective_json(which.objective);
  if (which.objective_overridden) document.erase("truth");
  document["subjects"] = {{which.subject, "match"}};
  return document;
}

Json shrunk_document(const Case& which, const CaseResult& result, Interpreters& interpreters) {
  if (result.verdict == Verdict::kMatch)
    throw UserError("repro: --shrink keeps a finding, and this case matches: " + which.id);
  const Json document = document_of(which);
  Runs runs(which, shown_by(result), interpreters);
  if (!runs({document}).at(0))
    throw UserError("repro: --shrink: the case did not show the same a second time: " + which.id);
  ShrinkOptions options;
  options.is_interrupted = [] { return interrupted_by() != 0; };
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal)
    options.on_progress = [](const ShrinkProgress& progress) {
      complain("\r\033[K{} run, {} reductions: {:.60}", progress.tried, progress.kept,
               progress.last);
      std::fflush(stderr);
    };
  Shrunk shrunk = shrink(
      document, [&](const std::vector<Json>& documents) { return runs(documents); }, options);
  if (terminal) complain("\r\033[K");
  tell(shrunk, document);
  return shrunk.document;
}

}  // namespace distgrad
