// distgrad explain [OPTION...] CASE
#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/interrupts.h"
#include "cli/color.h"
#include "cli/command.h"
#include "cli/guards.h"
#include "cli/host.h"
#include "cli/interruption.h"
#include "cli/load.h"
#include "cli/parse_arguments.h"
#include "cli/run_options.h"
#include "cli/say.h"
#include "cli/terminal.h"
#include "report/summary.h"
#include "verify/explanation.h"

namespace distgrad {
namespace {

constexpr const char* kExplainExamples =
    "Examples:\n"
    "  distgrad explain 'scenarios/debate/all_reduce_sum.json:subject=in_place'\n"
    "  distgrad explain mine/gather.json --subject torch_nn --world-size 3\n";

// Checks the options of `run` that are allowed: those that say which case it is and how it runs.
// Run's own parser reads them, so that they mean the same; this keeps the others out and has the
// help.
std::optional<ExitCode> check_arguments(const Arguments& arguments) {
  CLI::App app(
      "Show one case in full: every value and cotangent by rank, and where the ranks part from the "
      "truth.",
      "distgrad explain");
  std::string text;
  std::vector<std::string> texts;
  bool flag = false;
  const auto option = [&](const char* name, const char* type, const char* help) {
    app.add_option(name, texts, help)->type_name(type)->allow_extra_args(false);
  };
  app.add_option("CASE", text, "a scenario file of one case, or a case as the reports name it")
      ->required();
  option("--subject", "NAME", "the implementation under test");
  option("--world-size", "N", "the number of ranks");
  option("--dtype", "DTYPE", "float64, float32, bfloat16, float16");
  option("--backend", "NAME", "what carries the collectives");
  option("--device", "NAME", "cpu, cuda: where the tensors are");
  app.add_flag("--share-gpu", flag, "nccl: several ranks may have one GPU");
  option("--objective", "OBJECTIVE", "sum, mean, replicated, rank:1");
  option("--python", "PATH", "the interpreter for a subject in Python");
  app.add_flag("--allow-code", flag, "run code that the scenario file names");
  option("--timeout", "S", "seconds for the case");
  const GuardOptions guards(app);  // run applies them
  app.add_flag("--full", flag, "show all ranks and elements");
  option("--color", "WHEN", "auto, always or never");
  describe(app, kExplainExamples);
  return parse_arguments(app, arguments);
}

std::variant<RunOptions, ExitCode> parse_explain_options(const Arguments& arguments) {
  if (const auto done = check_arguments(arguments)) return *done;
  return run_options_of("explain", arguments);
}

void refuse_several(const std::vector<Case>& cases) {
  if (cases.size() < 2) return;
  throw UserError(fmt::format("explain: it takes one case, and these are {}; choose one:{}",
                              cases.size(), choices_text("explain", cases)));
}

class ExplainListener : public VerifyListener {
 public:
  explicit ExplainListener(Report& report) : report_(report) {}
  void on_conclusion(const Conclusion& conclusion) override {
    explanation = explanation_of(conclusion);
  }
  void on_result(CaseResult result) override { report_.cases.push_back(std::move(result)); }
  void on_invalid(InvalidFile invalid) override {
    report_invalid({&invalid, 1});
    report_.invalid.push_back(std::move(invalid));
  }
  void on_progress(std::size_t, std::size_t) override {}

  Explanation explanation;  // empty: the case could not be simulated

 private:
  Report& report_;
};

TextOptions explain_text_options(const RunOptions& options) {
  TextOptions text;
  text.color = wants_color(options.color);
  text.full = options.full;
  text.width = terminal_width(text.width);
  text.again =
      "distgrad explain" + again_text(options).substr(std::string_view("distgrad run").size());
  if (options.full) text.again += " --full";
  return text;
}

}  // namespace

ExitCode explain_command(const Arguments& arguments) {
  const auto parsed = parse_explain_options(arguments);
  if (const auto* done = std::get_if<ExitCode>(&parsed)) return *done;
  RunOptions options = std::get<RunOptions>(parsed);
  Host host(options.share_gpu);
  host.answer_for_accelerators(options.overrides);
  const Interrupts interrupts;
  const Loaded loaded = load_cases(options.paths, options.overrides);
  Report report;
  report.invalid = loaded.invalid;
  report_invalid(loaded.invalid);
  refuse_several(loaded.cases);

  ExplainListener listener(report);
  verify(loaded.cases, {.interpreters = &host.interpreters()}, listener);
  if (const int signal = interrupted_by()) return interrupted(signal);
  for (const CaseResult& result : report.cases)
    put(explain_text(listener.explanation, result, explain_text_options(options)));
  report.summary = summary_of(report.cases);
  return exit_code_of(report, false);
}

}  // namespace distgrad
