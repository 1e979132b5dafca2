// distgrad repro [OPTION...] CASE
#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "base/visible_text.h"
#include "cli/command.h"
#include "cli/guards.h"
#include "cli/host.h"
#include "cli/interruption.h"
#include "cli/load.h"
#include "cli/parse_arguments.h"
#include "cli/repro_calls.h"
#include "cli/repro_shrink.h"
#include "cli/run_options.h"
#include "cli/say.h"
#include "report/words.h"
#include "repro/repro.h"
#include "scenario/cases.h"
#include "scenario/parse.h"
#include "scenario/scenario_text.h"
#include "verify/verify.h"

namespace distgrad {
namespace {

constexpr const char* kReproExamples =
    "Examples:\n"
    "  distgrad repro 'mine/gather.json:subject=simclr,world_size=2' -o repro.py\n"
    "  distgrad repro --shrink mine/gather.json --subject torch_nn\n";

struct ReproOptions {
  RunOptions run;
  std::string output = "-";
  bool shrink = false;
  bool scenario = false;
};

// Run's own parser reads the options that say which case it is, so that they mean the same.
std::variant<ReproOptions, ExitCode> parse_repro_options(const Arguments& arguments) {
  CLI::App app("Write a case as a Python script that needs torch alone, to paste into an issue.",
               "distgrad repro");
  ReproOptions options;
  std::vector<std::string> paths;
  Arguments for_run;
  const auto option = [&](const std::string& name, const char* type, const char* help) {
    app.add_option_function<std::string>(
           name,
           [&for_run, name](const std::string& value) {
             for_run.insert(for_run.end(), {name, value});
           },
           help)
        ->type_name(type);
  };
  app.add_option("CASE", paths, "a scenario file of one case, or a case as the reports name it")
      ->required();
  app.add_option("-o,--output", options.output,
                 "file to write, or folder for several cases; default: standard output")
      ->type_name("FILE");
  app.add_flag("--shrink", options.shrink,
               "first make the case as simple as it can be while the finding stays");
  app.add_flag("--scenario", options.scenario, "write the case as a scenario file instead");
  option("--subject", "NAME", "the implementation under test");
  option("--world-size", "N", "the number of ranks");
  option("--dtype", "DTYPE", "float64, float32, bfloat16, float16");
  option("--backend", "NAME", "what carries the collectives");
  option("--objective", "OBJECTIVE", "sum, mean, replicated, rank:1");
  option("--python", "PATH", "the interpreter for a subject in Python");
  option("--timeout", "S", "seconds for the case");
  bool allow_code = false;
  app.add_flag("--allow-code", allow_code, "run code that the scenario file names");
  const GuardOptions guards(app);
  describe(app, kReproExamples);
  if (const auto done = parse_arguments(app, arguments)) return *done;
  guards.apply("repro");
  if (allow_code) for_run.push_back("--allow-code");
  for_run.insert(for_run.end(), paths.begin(), paths.end());
  options.run = run_options_of("repro", for_run);
  return options;
}

bool writes_folder(const ReproOptions& options) {
  return options.output.ends_with("/") || std::filesystem::is_directory(options.output);
}

void check_number(const std::vector<Case>& cases, const ReproOptions& options) {
  if (cases.empty()) throw UserError("repro: no case is left");
  for (const Case& c : cases)
    if (calls_code(c) && (options.shrink || options.scenario))
      throw UserError("repro: " + c.id + " calls code of your own, which --" +
                      (options.shrink ? "shrink" : "scenario") +
                      " does not take; a script can be made of it");
  if (cases.size() == 1 || (writes_folder(options) && !options.shrink)) return;
  throw UserError(fmt::format("repro: it takes one case, and these are {}; choose one{}:{}",
                              cases.size(),
                              options.shrink ? "" : ", or name a folder for all with -o FOLDER/",
                              choices_text("repro", cases)));
}

// Returns "scenarios-debate-total.json-subject-in_place.py".
std::string file_name(const std::string& id, const char* ending) {
  std::string name = id;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '+' &&
        c != '-')
      c = '-';
  return name + ending;
}

// Keeps the result of a case beyond verify().
struct CaseOutcome {
  std::optional<CaseResult> result;
  std::optional<Program> program;  // absent: it could not be simulated
  Simulation simulation;
};

class ReproListener : public VerifyListener {
 public:
  void on_conclusion(const Conclusion& conclusion) override {
    CaseOutcome& kept = by_case[conclusion.which.id];
    kept.program = conclusion.asked.program;
    kept.simulation = conclusion.simulation;
  }
  void on_result(CaseResult result) override {
    CaseOutcome& kept = by_case[result.which.id];
    kept.result = std::move(result);
  }
  void on_invalid(InvalidFile invalid) override {
    report_invalid({&invalid, 1});
    any_invalid = true;
  }
  void on_progress(std::size_t, std::size_t) override {}

  std::map<std::string, CaseOutcome> by_case;
  bool any_invalid = false;
};

std::string versions() {
  return fmt::format("distgrad {}{}{}", kVersion, kTorchVersion.empty() ? "" : " with torch ",
                     kTorchVersion);
}

// Throws UserError if there is nothing to show.
std::string script_of(const CaseOutcome& kept, ForeignCode& foreign) {
  const CaseResult& result = *kept.result;
  if (result.verdict == Verdict::kSkipped)
    throw UserError("repro: there is nothing to show: " + result.why);
  if (!kept.program || (result.gradients.empty() && result.verdict != Verdict::kError))
    throw UserError("repro: the case could not be carried through" +
                    (result.why.empty() ? "" : ": " + result.why));
  return repro_script({result.which, *kept.program, kept.simulation, result,
                       foreign.of(result.which, *kept.program), versions()});
}

// Writes one file, or one for each case into a folder, where it goes on after one that fails.
bool write_scripts(const std::vector<Case>& cases, const ReproListener& listener,
                   const ReproOptions& options, Interpreters& interpreters) {
  bool all = true;
  const bool folder = writes_folder(options);
  if (folder) std::filesystem::create_directories(options.output);
  ForeignCode foreign(interpreters);
  std::vector<std::pair<const Case*, const Program*>> asked;
  for (const auto& [id, kept] : listener.by_case)
    if (kept.result && kept.program) asked.emplace_back(&kept.result->which, &*kept.program);
  if (asked.size() > 1) foreign.ask_about(asked);
  for (const Case& which : cases) {
    const auto kept = listener.by_case.find(which.id);
    if (kept == listener.by_case.end() || !kept->second.result) continue;  // invalid, and reported
    try {
      const std::string path =
          folder ? (std::filesystem::path(options.output) / file_name(which.id, ".py")).string()
                 : options.output;
      write_file_atomically(path, script_of(kept->second, foreign));
    } catch (const UserError& e) {
      if (!folder) throw;
      complain("distgrad: {}: {}\n", visible_text(which.id, Lines::kEscaped),
               visible_text(e.what(), Lines::kKept));
      all = false;
    }
  }
  return all;
}

// Returns the reduced scenario's one case, whose id is the original's with ", reduced" behind it.
Loaded reduced(const Case& which, const nlohmann::ordered_json& document) {
  Loaded loaded;
  loaded.scenarios.push_back(
      std::make_unique<Scenario>(parse_scenario(document.dump(), which.scenario->file)));
  Overrides overrides;
  overrides.allow_code = true;  // it ran before
  loaded.cases = expand(*loaded.scenarios[0], overrides, kTorchVersion);
  for (Case& c : loaded.cases) {
    c.python = which.python;
    c.id = which.id + ", reduced";
  }
  return loaded;
}

}  // namespace

ExitCode repro_command(const Arguments& arguments) {
  const auto parsed = parse_repro_options(arguments);
  if (const auto* done = std::get_if<ExitCode>(&parsed)) return *done;
  ReproOptions options = std::get<ReproOptions>(parsed);
  Host host;
  const Interrupts interrupts;
  Loaded loaded = load_cases(options.run.paths, options.run.overrides);
  report_invalid(loaded.invalid);
  if (!loaded.invalid.empty()) return ExitCode::kUserError;
  check_number(loaded.cases, options);

  ReproListener listener;
  verify(loaded.cases, {.interpreters = &host.interpreters()}, listener);
  if (const int signal = interrupted_by()) return interrupted(signal);
  if (listener.any_invalid && !writes_folder(options)) return ExitCode::kUserError;
  nlohmann::ordered_json document;
  if (options.shrink || options.scenario) {
    const Case& which = loaded.cases.front();
    const CaseResult& result = *listener.by_case.at(which.id).result;
    if (result.verdict == Verdict::kSkipped)
      throw UserError("repro: there is nothing to show: " + result.why);
    document =
        options.shrink ? shrunk_document(which, result, host.interpreters()) : document_of(which);
    if (options.scenario) {
      write_file_atomically(options.output, scenario_text(document));
      return ExitCode::kAsExpected;
    }
    if (const int signal = interrupted_by()) return interrupted(signal);
    Loaded simpler = reduced(which, document);
    listener = ReproListener();
    verify(simpler.cases, {.interpreters = &host.interpreters()}, listener);
    if (const int signal = interrupted_by()) return interrupted(signal);
    return write_scripts(simpler.cases, listener, options, host.interpreters())
               ? ExitCode::kAsExpected
               : ExitCode::kUserError;
  }
  const bool all = write_scripts(loaded.cases, listener, options, host.interpreters());
  return all && !listener.any_invalid ? ExitCode::kAsExpected : ExitCode::kUserError;
}

}  // namespace distgrad
