// distgrad fuzz [OPTION...]
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>

#include "base/atomic_file.h"
#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/lines.h"
#include "base/whole_number.h"
#include "cli/command.h"
#include "cli/fuzz_report.h"
#include "cli/guards.h"
#include "cli/interruption.h"
#include "cli/parse_arguments.h"
#include "cli/run_options.h"
#include "cli/say.h"
#include "fuzz/fuzzer.h"
#include "fuzz/simulate_programs.h"
#include "model/subject_text.h"
#include "report/words.h"
#include "scenario/case_id.h"
#include "scenario/scenario_text.h"

namespace distgrad {
namespace {

constexpr const char* kFuzzExamples =
    "Examples:\n"
    "  distgrad fuzz --seconds 60\n"
    "  distgrad fuzz --subject torch_nn --collective all_reduce --seed 1 --count 500\n"
    "  distgrad fuzz --subject python:my_layers.py --out found\n";

constexpr double kDefaultSeconds = 10;

struct Options {
  FuzzOptions fuzz;
  std::string out = "fuzz-failures";
  bool simulate = false;
  bool allow_empty = false;
};

// Keeps the options as typed, for the command that repeats the run.
struct FuzzLists {
  std::vector<std::string> subjects, world_sizes, dtypes, collectives, objectives;
  std::string seed;
  std::optional<std::int64_t> count;
};

void add_options(CLI::App& app, Options& options, FuzzLists& lists) {
  const auto list = [&](const char* name, std::vector<std::string>& to, const char* type,
                        const char* help) {
    app.add_option(name, to, help)->type_name(type)->allow_extra_args(false);
  };
  list("--subject", lists.subjects, "NAME,...",
       "the implementations under test (default reference)");
  app.add_option("--seed", lists.seed, "of the programs (default: another one each time)")
      ->type_name("N");
  app.add_option("--count", lists.count, "programs for each subject")->type_name("N");
  app.add_option("--seconds", options.fuzz.seconds, "draw programs for so long (default 10)")
      ->type_name("S");
  app.add_option("--out", options.out, "where failures are written (default fuzz-failures)")
      ->type_name("DIR");
  list("--world-size", lists.world_sizes, "N,...", "the numbers of ranks");
  list("--dtype", lists.dtypes, "DTYPE,...", "float64, float32, bfloat16, float16");
  list("--collective", lists.collectives, "KIND,...", "only these");
  list("--objective", lists.objectives, "WORD,...", "sum, mean, replicated, rank, axes");
  app.add_flag("--simulate", options.simulate, "check the ground truth itself: start no ranks");
  app.add_option("--timeout", options.fuzz.timeout_s, "seconds for one program (default 10)")
      ->type_name("S");
  app.add_option("--python", options.fuzz.python, "the interpreter for subjects in Python")
      ->type_name("PATH");
  app.add_flag("--allow-empty", options.allow_empty, "exit code 0 where nothing ran");
}

std::vector<std::string> split_at_commas(const std::vector<std::string>& values) {
  std::vector<std::string> words;
  for (const std::string& value : values)
    for (std::size_t from = 0; from <= value.size();) {
      const std::size_t comma = std::min(value.find(',', from), value.size());
      words.push_back(value.substr(from, comma - from));
      from = comma + 1;
    }
  return words;
}

std::string checked_word(const char* option, const std::string& word,
                         const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return word;
  throw UserError(
      fmt::format("fuzz: {}: unknown \"{}\"{}", option, word, did_you_mean_or_known(word, known)));
}

std::uint64_t read_seed(const std::string& text) {
  if (text.empty()) return std::random_device{}() % 1'000'000;  // short enough to type again
  if (const auto seed = whole_number<std::uint64_t>(text)) return *seed;
  throw UserError(fmt::format("fuzz: --seed is an integer from 0 to 2^64 - 1, not \"{}\"", text));
}

void read_lists(const FuzzLists& lists, FuzzOptions& options) {
  Overrides overrides;
  add_overrides("fuzz", overrides, "subject", lists.subjects);
  add_overrides("fuzz", overrides, "world_size", lists.world_sizes);
  add_overrides("fuzz", overrides, "dtype", lists.dtypes);
  if (!overrides.subjects.empty()) options.subjects = overrides.subjects;
  if (!overrides.world_sizes.empty()) options.choices.world_sizes = overrides.world_sizes;
  if (!overrides.dtypes.empty()) options.choices.dtypes = overrides.dtypes;
  std::vector<std::string> kinds;
  for (const CollectiveTraits& kind : kCollectives) kinds.emplace_back(kind.name);
  for (const std::string& word : split_at_commas(lists.collectives))
    options.kinds.push_back(*collective_named(checked_word("--collective", word, kinds)));
  const std::vector<std::string> objectives = split_at_commas(lists.objectives);
  for (const std::string& word : objectives)
    checked_word("--objective", word, {"sum", "mean", "replicated", "rank", "axes"});
  if (!objectives.empty()) options.choices.objectives = objectives;
}

void check(const FuzzLists& lists, Options& options) {
  const auto& seconds = options.fuzz.seconds;
  if (lists.count && *lists.count <= 0)
    throw UserError("fuzz: --count is a number of programs above 0");
  if (seconds && !(*seconds > 0 && std::isfinite(*seconds)))
    throw UserError("fuzz: --seconds is a number above 0");
  if (!(options.fuzz.timeout_s > 0 && std::isfinite(options.fuzz.timeout_s)))
    throw UserError("fuzz: --timeout is a number of seconds above 0");
  if (options.simulate && !lists.subjects.empty())
    throw UserError("fuzz: --simulate checks the ground truth itself, so it takes no --subject");
  if (lists.count) options.fuzz.count = static_cast<std::uint64_t>(*lists.count);
  if (!lists.count && !seconds) options.fuzz.seconds = kDefaultSeconds;
  constexpr int kMostRanks = 64;  // for programs whose tensors have a few dozen elements
  for (const int size : options.fuzz.choices.world_sizes)
    if (size > kMostRanks)
      throw UserError(fmt::format("fuzz: --world-size: at most {} ranks", kMostRanks));
}

std::string again_text(const Options& options, const FuzzLists& lists, std::uint64_t drawn) {
  std::string text = options.simulate ? "distgrad fuzz --simulate" : "distgrad fuzz";
  const auto add = [&](const char* option, const std::vector<std::string>& words) {
    if (!words.empty())
      text += fmt::format(" {} {}", option, as_typed(fmt::format("{}", fmt::join(words, ","))));
  };
  add("--subject", lists.subjects);
  add("--world-size", lists.world_sizes);
  add("--dtype", lists.dtypes);
  add("--collective", lists.collectives);
  add("--objective", lists.objectives);
  if (!options.fuzz.python.empty()) text += " --python " + as_typed(options.fuzz.python);
  const std::uint64_t count = drawn > 0 ? drawn : options.fuzz.count.value_or(1);
  return text + fmt::format(" --seed {} --count {}", options.fuzz.seed, count);
}

// Keeps letters, digits, '-', '_' and '.', for file names.
std::string file_word(const std::string& text) {
  std::string word;
  for (const char c : text)
    word +=
        std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ? c : '_';
  return word;
}

std::string heading(const FuzzKey& key) {
  std::string text = key.rule;
  if (!key.collective.empty()) text += "  " + key.collective;
  if (!key.op.empty()) text += " " + key.op;
  return text;
}

// Writes each failure at once, so that an interrupt, or a kill, loses nothing.
class Reporter : public FuzzListener {
 public:
  explicit Reporter(const Options& options)
      : options_(options), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

  void on_failure(const FuzzFailure& failure) override {
    erase();
    const std::string path = write(failure);
    say("FAIL  {}{}   {}{}{}\n", several() ? failure.key.subject + "  " : "", heading(failure.key),
        failure.is_probe ? "asked before any program" : fmt::format("program {}", failure.index),
        failure.shrinks
            ? fmt::format(", {} smaller", count_text(static_cast<long>(failure.shrinks), "step"))
            : "",
        failure.is_minimal ? "" : ", not yet minimal");
    say("{}      {}\n", wrapped(for_terminal(failure.text), 6, 100), path);
    std::fflush(stdout);
    paths_[failure.key] = path;
  }

  void on_progress(const FuzzTally& tally, std::size_t failures) override {
    if (!is_terminal_ || std::chrono::steady_clock::now() < next_line_) return;
    next_line_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    const std::string line = fmt::format("{} programs, {} found", tally.programs, failures);
    complain("\r{}\x1b[K", line);
    std::fflush(stderr);
    visible_ = true;
  }

  std::size_t found() const { return paths_.size(); }

  // Returns the files written, in the order of the failures.
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (const auto& [key, path] : paths_) paths.push_back(path);
    return paths;
  }

  void erase() {
    if (visible_) complain("\r\x1b[K");
    visible_ = false;
  }

 private:
  bool several() const { return options_.fuzz.subjects.size() > 1; }

  // Uses another name if there is such a file already with other content.
  std::string write(const FuzzFailure& failure) {
    std::string folder = options_.out;
    if (several()) folder += "/" + file_word(failure.key.subject);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      throw UserError(fmt::format("fuzz: --out: cannot make {}: {}", folder, error.message()));
    std::string name = failure.key.rule;
    for (const std::string& part : {failure.key.collective, failure.key.op})
      if (!part.empty()) name += "-" + part;
    std::string path = fmt::format("{}/{}.json", folder, name);
    for (int n = 2; std::filesystem::exists(path); ++n)
      path = fmt::format("{}/{}-{}.json", folder, name, n);
    write_file_atomically(path, scenario_text(failure.scenario));
    return path;
  }

  const Options& options_;
  bool is_terminal_;
  bool visible_ = false;
  std::chrono::steady_clock::time_point next_line_{};
  std::map<FuzzKey, std::string> paths_;
};

void print_table(const std::map<FuzzKey, FuzzFailure>& by_key, bool several) {
  std::vector<const FuzzFailure*> failures;
  for (const auto& [key, failure] : by_key) failures.push_back(&failure);
  std::stable_sort(failures.begin(), failures.end(),
                   [](const auto* a, const auto* b) { return a->count > b->count; });
  if (failures.size() < 2) return;
  say("\nprograms  what\n");
  for (const FuzzFailure* f : failures)
    say("{:8}  {}{}\n", f->count, several ? f->key.subject + "  " : "", heading(f->key));
}

struct Result {
  FuzzTally tally;
  std::size_t found = 0;
  double elapsed_s = 0;
};

void print_summary(const Result& result, const Options& options, const FuzzLists& lists) {
  const FuzzTally& tally = result.tally;
  std::string counts = options.simulate ? fmt::format("{} consistent", tally.matches)
                                        : fmt::format("{} match", tally.matches);
  const auto add = [&](long n, const char* what) {
    if (n > 0) counts += fmt::format(", {} {}", n, what);
  };
  add(tally.mismatches, "mismatch");
  add(tally.broken, "broken");
  add(tally.disputed, "disputed");
  add(tally.skipped, "skipped");
  if (result.found > 0) say("\n");
  say("{}: {}; {} in {} ({:.0f}/s).\n",
      options.simulate ? "simulated" : fmt::format("{}", fmt::join(options.fuzz.subjects, ", ")),
      count_text(tally.programs, "program"), counts, seconds_text(result.elapsed_s),
      static_cast<double>(tally.programs) / std::max(result.elapsed_s, 1e-3));
  std::vector<std::pair<long, std::string>> reasons;
  for (const auto& [why, n] : tally.why_skipped) reasons.emplace_back(-n, why);
  std::sort(reasons.begin(), reasons.end());
  for (std::size_t i = 0; i < reasons.size() && i < 3; ++i)
    say("skipped: {}: {}\n", -reasons[i].first, for_terminal(reasons[i].second));
  for (const auto& [raised, what] : tally.not_drawn) {
    const auto& [subject, message] = raised;
    say("not drawn, as {} raises: {}: {}\n", subject, fmt::join(what, ", "),
        for_terminal(first_line(message)));
  }
  say("{} Again: {}\n",
      tally.programs == 0
          ? "No program ran: the time was over, or the run was ended, before one did."
      : result.found == 0 ? "Nothing found."
                          : fmt::format("{} found.", result.found),
      again_text(options, lists, tally.drawn));
  if (result.found == 0) return;
  const bool code =
      std::any_of(options.fuzz.subjects.begin(), options.fuzz.subjects.end(), is_foreign_code);
  say("Each by itself: distgrad run {}{}{}\n", options.simulate ? "--simulate " : "",
      code ? "--allow-code " : "", as_typed(options.out));
}

ExitCode exit_code(const FuzzTally& tally, bool allow_empty) {
  if (tally.broken > 0) return ExitCode::kBroken;
  if (tally.mismatches > 0) return ExitCode::kNotAsExpected;
  const bool nothing_ran = tally.programs == tally.skipped;
  return nothing_ran && !allow_empty ? ExitCode::kNothingRan : ExitCode::kAsExpected;
}

}  // namespace

ExitCode fuzz_command(const Arguments& arguments) {
  CLI::App app(
      "Run random programs and report which gradients are wrong, each kind of failure once and "
      "shrunk.",
      "distgrad fuzz");
  Options options;
  FuzzLists lists;
  add_options(app, options, lists);
  const ReportOptions report_options(app);
  const GuardOptions guards(app);
  describe(app, kFuzzExamples);
  if (const auto done = parse_arguments(app, arguments)) return *done;
  guards.apply("fuzz");
  options.fuzz.seed = read_seed(lists.seed);
  read_lists(lists, options.fuzz);
  check(lists, options);
  const std::vector<ReportFile> files = report_options.files("fuzz");
  if (options.simulate && !files.empty())
    throw UserError(fmt::format("fuzz: {}: with --simulate there are no ranks to report on",
                                files.front().format->option));
  if (prints_report(files))
    throw UserError(
        "fuzz: standard output has what is found as it is found; write reports to files");

  const auto started = std::chrono::steady_clock::now();
  const Interrupts interrupts;
  Interpreters interpreters;
  Reporter reporter(options);
  say("seed {}\n", options.fuzz.seed);
  std::fflush(stdout);
  Result result;
  if (options.simulate) {
    result.tally = simulate_programs(options.fuzz, reporter);
    reporter.erase();
  } else {
    Fuzzer fuzzer(options.fuzz, interpreters, reporter);
    fuzzer.run();
    reporter.erase();
    print_table(fuzzer.failures(), options.fuzz.subjects.size() > 1);
    result.tally = fuzzer.tally();
  }
  result.found = reporter.found();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  result.elapsed_s = elapsed.count();
  print_summary(result, options, lists);
  if (const int signal = interrupted_by()) {
    std::fflush(stdout);
    return interrupted(signal);
  }
  const FuzzSummary summary{command_text("fuzz", arguments), result.tally.matches, result.elapsed_s,
                            options.fuzz.python};
  const bool all_written =
      files.empty() || report_failures(files, reporter.paths(), summary, interpreters);
  const ExitCode code = exit_code(result.tally, options.allow_empty);
  return all_written || code == ExitCode::kBroken ? code : ExitCode::kUserError;
}

}  // namespace distgrad
