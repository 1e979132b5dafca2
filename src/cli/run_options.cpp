#include "cli/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/whole_number.h"
#include "cli/guards.h"
#include "cli/parse_arguments.h"
#include "model/subject_text.h"
#include "report/words.h"
#include "scenario/subject_name.h"

namespace distgrad {
namespace {

// Holds options that need a second look, as given.
struct RunLists {
  std::vector<std::string> subjects, world_sizes, dtypes, backends, devices, objectives, pythons;
  std::string color = "auto";
  std::string shard;
};

constexpr int kMostJobs = 64;  // each is a process for every rank

constexpr const char* kExamples =
    "Examples:\n"
    "  distgrad run scenarios/debate\n"
    "  distgrad run 'mine/gather.json:subject=torch_nn,world_size=3'\n";

void add_options(CLI::App& app, RunOptions& options, RunLists& lists) {
  const auto list = [&](const char* name, std::vector<std::string>& to, const char* type,
                        const char* help) {
    // Otherwise it would take the following paths, too.
    app.add_option(name, to, help)->type_name(type)->allow_extra_args(false);
  };
  app.add_option("PATH", options.paths, "scenario files, folders or cases (default scenarios)")
      ->expected(0, 1 << 20);
  list("--subject", lists.subjects, "NAME,...", "the implementations under test");
  list("--world-size", lists.world_sizes, "N,...", "the numbers of ranks");
  list("--dtype", lists.dtypes, "DTYPE,...", "float64, float32, bfloat16, float16");
  list("--backend", lists.backends, "NAME,...", "what carries the collectives");
  list("--device", lists.devices, "NAME,...", "cpu, cuda: where the tensors are");
  app.add_flag("--share-gpu", options.share_gpu, "nccl: several ranks may have one GPU");
  list("--objective", lists.objectives, "OBJECTIVE,...", "sum, mean, replicated, rank:1");
  app.add_option("--filter", options.overrides.filter, "only cases whose name contains it")
      ->type_name("TEXT");
  app.add_flag("--simulate", options.simulate, "the ground truth only: start no ranks");
  app.add_option("--golden", options.golden, "compare with the golden files in DIR")
      ->type_name("DIR");
  list("--python", lists.pythons, "PATH", "the interpreter for subjects in Python");
  app.add_flag("--allow-code", options.overrides.allow_code, "run code that scenario files name");
  app.add_option("--timeout", options.overrides.timeout_s, "seconds for one case")->type_name("S");
  app.add_flag("--strict", options.strict, "skipped, disputed or vacuous is not as expected");
  app.add_flag("--allow-empty", options.allow_empty, "exit code 0 where nothing ran");
  app.add_flag("--fail-fast", options.fail_fast, "stop at the first case not as expected");
  app.add_option("--jobs", options.jobs, "run so many cases side by side (default 1)")
      ->type_name("N");
  app.add_option("--mesh-order", options.mesh_order, "a launcher's: mesh axes over its ranks")
      ->type_name("AXIS,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--shard", lists.shard, "the i-th of n parts of the cases")->type_name("I/N");
  app.add_option("--durations", options.durations, "list the N slowest cases")->type_name("N");
  app.add_flag("--full", options.full, "show all ranks and elements");
  app.add_flag("-q,--quiet", options.quiet, "only failures and the summary");
  app.add_flag("-v,--verbose", options.verbose, "every case in full");
  app.add_option("--color", lists.color, "auto, always or never")->type_name("WHEN");
}

Color read_color(const std::string& text) {
  const std::vector<std::string> known = {"auto", "always", "never"};
  const auto found = std::find(known.begin(), known.end(), text);
  if (found != known.end()) return static_cast<Color>(found - known.begin());
  throw UserError(
      fmt::format("run: --color: unknown \"{}\"{}", text, did_you_mean_or_known(text, known)));
}

// Returns the whole of `text` as a number above 0, else 0.
int positive_number(std::string_view text) {
  return std::max(0, whole_number<int>(text).value_or(0));
}

Shard read_shard(const std::string& text) {
  if (text.empty()) return {};
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string_view whole = text;
  const Shard shard{positive_number(whole.substr(0, slash)),
                    slash < text.size() ? positive_number(whole.substr(slash + 1)) : 0};
  if (shard.index == 0 || shard.count == 0 || shard.index > shard.count)
    throw UserError(fmt::format(
        "run: --shard: \"{}\" is not I/N, the I-th of N parts, such as 1/4 or 4/4", text));
  return shard;
}

// Joins subjects for one collective each into one subject. A second one for the same collective
// begins the next.
void join_parts(std::vector<std::string>& subjects) {
  std::vector<std::string> joined;
  std::set<CollectiveKind> taken;
  for (const std::string& subject : subjects) {
    if (!has_parts(subject)) continue;
    const std::vector<SubjectPart> parts = parts_of(subject);
    const bool is_next = joined.empty() || std::ranges::any_of(parts, [&](const SubjectPart& part) {
                           return taken.contains(*part.serves);
                         });
    if (is_next) {
      joined.push_back(subject);
      taken.clear();
    } else {
      joined.back() += "+" + subject;
    }
    for (const SubjectPart& part : parts) taken.insert(*part.serves);
  }
  for (const std::string& subject : joined)
    if (const std::string why = problem_with_subject(subject); !why.empty())
      throw UserError("run: --subject: " + why);
  std::erase_if(subjects, has_parts);
  subjects.insert(subjects.end(), joined.begin(), joined.end());
}

void read_lists(const RunLists& lists, RunOptions& options) {
  Overrides& overrides = options.overrides;
  add_overrides("run", overrides, "subject", lists.subjects);
  join_parts(overrides.subjects);
  add_overrides("run", overrides, "python", lists.pythons);
  add_overrides("run", overrides, "world_size", lists.world_sizes);
  add_overrides("run", overrides, "dtype", lists.dtypes);
  add_overrides("run", overrides, "backend", lists.backends);
  add_overrides("run", overrides, "device", lists.devices);
  add_overrides("run", overrides, "objective", lists.objectives);
  options.color = read_color(lists.color);
  options.shard = read_shard(lists.shard);
}

}  // namespace

std::variant<RunOptions, ExitCode> parse_run_options(const Arguments& arguments) {
  CLI::App app("Run scenarios and report which gradients are right.", "distgrad run");
  RunOptions options;
  RunLists lists;
  add_options(app, options, lists);
  const ReportOptions reports(app);
  const GuardOptions guards(app);
  describe(app, kExamples);
  if (const auto done = parse_arguments(app, arguments)) return *done;
  read_lists(lists, options);
  options.reports = reports.files("run");
  const auto timeout = options.overrides.timeout_s;
  if (timeout && !(*timeout > 0 && std::isfinite(*timeout)))
    throw UserError("run: --timeout is a number of seconds above 0");
  if (options.jobs < 1 || options.jobs > kMostJobs)
    throw UserError(fmt::format("run: --jobs is a number from 1 to {}", kMostJobs));
  if (options.simulate && !options.golden.empty())
    throw UserError(
        "run: either --simulate or --golden; `distgrad golden check` compares simulations with "
        "golden files");
  if (options.quiet && options.verbose) throw UserError("run: either --quiet or --verbose");
  guards.apply("run");
  return options;
}

RunOptions run_options_of(const std::string& command, const Arguments& arguments) try {
  return std::get<RunOptions>(parse_run_options(arguments));
} catch (const UserError& e) {
  const std::string text = e.what();
  throw UserError(text.starts_with("run: ") ? command + text.substr(3) : text);
}

std::string again_text(const RunOptions& options) {
  std::string text = "distgrad run";
  if (options.simulate) text += " --simulate";
  if (!options.golden.empty()) text += " --golden " + as_typed(options.golden);
  if (const auto timeout = options.overrides.timeout_s)
    text += " --timeout " + number_text(*timeout);
  if (options.share_gpu) text += " --share-gpu";
  if (options.strict) text += " --strict";
  if (options.overrides.allow_code) text += " --allow-code";
  return text;
}

void add_overrides(std::string_view command, Overrides& overrides, const std::string& field,
                   const std::vector<std::string>& values) {
  std::string option = field;
  std::replace(option.begin(), option.end(), '_', '-');
  try {
    for (const std::string& value : values) add_override(overrides, field, value);
  } catch (const UserError& e) {
    throw UserError(fmt::format("{}: --{}: {}", command, option, e.what()));
  }
}

}  // namespace distgrad
