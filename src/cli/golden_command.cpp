// distgrad golden update|check|diff [OPTION...] [PATH...]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "base/atomic_file.h"
#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "cli/command.h"
#include "cli/guards.h"
#include "cli/interruption.h"
#include "cli/load.h"
#include "cli/parse_arguments.h"
#include "cli/say.h"
#include "golden/difference.h"
#include "golden/record.h"
#include "golden/store.h"
#include "report/words.h"
#include "verify/shared_truth.h"
#include "verify/verify.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsualFolder = "golden";

enum class Action { kUpdate, kCheck, kDiff };

struct GoldenOptions {
  Action action = Action::kCheck;
  std::string folder = kUsualFolder;
  std::vector<std::string> paths;
  bool full = false;
};

// Holds the result for one scenario.
struct Entry {
  const Scenario* scenario = nullptr;
  std::string path;  // of its golden file
  golden::GoldenFile now;
  std::string refused;  // why nothing may be written
  bool broken = false;  // the machine is at fault
};

using Entries = std::map<std::string, Entry>;  // by golden file

// Says how a golden file and the simulation relate.
struct GoldenState {
  bool up_to_date = false;
  bool is_new = false;
  bool is_foreign = false;  // it is no golden file, and must never be overwritten
  golden::Differences differences;
  std::string text;  // what update writes
};

struct Counts {
  int up_to_date = 0, differ = 0, missing = 0, orphaned = 0, refused = 0;
  int invalid = 0, broken = 0;
};

Action action_named(const std::string& name) {
  const std::vector<std::string> known = {"update", "check", "diff"};
  const auto found = std::find(known.begin(), known.end(), name);
  if (found != known.end()) return static_cast<Action>(found - known.begin());
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) hint = "; it is update, check or diff";
  throw UserError(fmt::format("golden: unknown \"{}\"{}", name, hint));
}

std::optional<ExitCode> read_options(const Arguments& arguments, GoldenOptions& options) {
  CLI::App app("Write, check or show changes of files that hold the true gradients.",
               "distgrad golden");
  std::string action;
  app.add_option("ACTION", action, "update, check or diff")
      ->required()
      ->type_name(choices_text({"update", "check", "diff"}));
  app.add_option("PATH", options.paths, "scenario files or folders (default scenarios)")
      ->expected(0, 1 << 20);
  app.add_option("--golden", options.folder, "the folder of golden files (default golden)")
      ->type_name("DIR");
  app.add_flag("--full", options.full, "every value that differs");
  const GuardOptions guards(app);
  describe(app,
           "Examples:\n"
           "  distgrad golden check\n"
           "  distgrad golden diff scenarios/debate\n"
           "  distgrad golden update scenarios/debate/product.json\n");
  if (const auto done = parse_arguments(app, arguments)) return done;
  guards.apply("golden");
  options.action = action_named(action);
  for (const std::string& path : options.paths)
    if (parse_case_id(path).path != path)
      throw UserError("golden: " + path + ": a golden file is of a whole file, not of some cases");
  return std::nullopt;
}

bool expects_disagreement(const Case& c) {
  return c.expected.finding == "truth" || c.expected.finding == "program";
}

// Returns one case for each truth. The simulation needs no subject, so none is skipped for lack of
// one.
std::vector<Case> cases_of(const Loaded& loaded, const Entries& entries) {
  std::set<const Scenario*> wanted;
  for (const auto& [path, entry] : entries) wanted.insert(entry.scenario);
  std::vector<Case> cases;
  for (const Case& c : loaded.cases) {
    if (!wanted.contains(c.scenario)) continue;
    cases.push_back(c);
    cases.back().skip_reason.clear();
  }
  // The first of the cases that share a truth counts, so one that expects the oracles to disagree
  // comes first.
  std::stable_partition(cases.begin(), cases.end(), expects_disagreement);
  return one_for_each_truth(cases);
}

Entries entries_for(const Loaded& loaded, const golden::Store& store) {
  Entries entries;
  for (const auto& scenario : loaded.scenarios) {
    if (has_code(scenario->steps)) continue;  // its truth does not depend on the file alone
    Entry entry;
    entry.scenario = scenario.get();
    entry.path = store.path_of(scenario->file);
    entry.now.scenario_sha256 = golden::scenario_sha256(scenario->file);
    entries.emplace(entry.path, std::move(entry));
  }
  return entries;
}

// Gathers the truths, and why some are missing.
class Truths : public VerifyListener {
 public:
  Truths(Entries& entries, Counts& counts) : counts_(counts) {
    for (auto& [path, entry] : entries) {
      by_scenario_[entry.scenario] = &entry;
      by_file_[entry.scenario->file] = &entry;
    }
  }

  void on_truth(const Case& c, const Program& program, const Simulation& simulation,
                const CaseComparison& guards) override {
    Entry& entry = *by_scenario_.at(c.scenario);
    if (simulation.differences.answer == FiniteDifferences::Answer::kDisagree)
      refuse(entry, disagreement(c, simulation.differences));
    entry.now.cases.push_back(golden::record_of(program, c.objective, simulation, guards));
  }

  void on_result(CaseResult result) override {
    Entry& entry = *by_scenario_.at(result.which.scenario);
    if (result.error) {
      entry.broken = true;
      refuse(entry, result.error->message);
    } else if (result.as_expected == false) {
      refuse(entry, why_not(result));
    }
  }

  void on_invalid(InvalidFile invalid) override {
    report_invalid({&invalid, 1});
    ++counts_.invalid;
    const auto found = by_file_.find(invalid.file);
    if (found != by_file_.end()) refuse(*found->second, "the scenario is invalid");
  }

  void on_progress(std::size_t, std::size_t) override {}

 private:
  static void refuse(Entry& entry, const std::string& why) {
    if (entry.refused.empty()) entry.refused = why;
  }

  static std::string disagreement(const Case& c, const FiniteDifferences& differences) {
    return fmt::format(
        "world_size={},dtype={}: finite differences disagree with the gradients: {} against {} "
        "along one direction",
        c.world_size, traits(c.dtype).name, number_text(differences.numeric),
        number_text(differences.derivative));
  }

  static std::string why_not(const CaseResult& result) {
    for (const Finding& finding : result.findings) {
      if (finding.rule == "truth") return "the file's truth is not what the program gives";
      if (finding.rule == "program") return "single_device is another program";
    }
    return result.why;
  }

  std::map<const Scenario*, Entry*> by_scenario_;
  std::map<std::string, Entry*> by_file_;
  Counts& counts_;
};

template <class T>
std::ptrdiff_t place_in(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) - list.begin();
}

// Sorts as the scenario lists them, since simulations come back in any order.
void sort_cases(Entry& entry) {
  const Scenario& s = *entry.scenario;
  const auto place = [&](const golden::CaseRecord& c) {
    return std::pair(place_in(s.world_sizes, c.world_size), place_in(s.dtypes, c.dtype));
  };
  std::sort(entry.now.cases.begin(), entry.now.cases.end(),
            [&](const auto& a, const auto& b) { return place(a) < place(b); });
}

bool looks_golden(const std::string& text) {
  return text.find("\"scenario_sha256\"") != std::string::npos;
}

GoldenState golden_state_of(const Entry& entry) {
  GoldenState state;
  const auto stored = golden::read_if_there(entry.path);
  if (!stored) {
    state.is_new = true;
    state.text = golden::text_of(entry.now);
    return state;
  }
  golden::GoldenFile result = entry.now;
  try {
    result = golden::kept(golden::parse_golden(*stored, entry.path), entry.now, state.differences);
  } catch (const UserError& e) {
    state.is_foreign = !looks_golden(*stored);
    state.differences.notes.push_back(e.what());
  }
  state.text = golden::text_of(result);
  state.up_to_date = state.text == *stored;
  if (!state.up_to_date && state.differences.empty())
    state.differences.notes.push_back("the values hold, but are not spelt as `update` spells them");
  return state;
}

// --- The screen ---

using Row = std::vector<std::string>;

std::string ulps_text(double stored, double now) {
  constexpr std::uint64_t kCounted = 1'000'000;
  const auto ulps = golden::ulps_between(stored, now);
  if (!ulps) return "-";
  return *ulps < kCounted ? std::to_string(*ulps) : number_text(static_cast<double>(*ulps), 2);
}

// Returns new over stored value if more than rounding lies between them, since no reader counts
// millions of ulps.
std::string ratio_of(double stored, double now) {
  constexpr std::uint64_t kRounding = 1024;
  const auto ulps = golden::ulps_between(stored, now);
  if (!ulps || *ulps <= kRounding || stored == 0) return "-";
  return number_text(now / stored, 3);
}

Row row_of(const golden::ValueDifference& d) {
  return {d.where,
          d.tensor,
          d.rank ? std::to_string(*d.rank) : "-",
          d.what.empty() ? index_text(d.index) : d.what,
          number_text(d.stored),
          number_text(d.now),
          ulps_text(d.stored, d.now),
          ratio_of(d.stored, d.now)};
}

void print_table(const std::vector<golden::ValueDifference>& values, std::size_t most) {
  if (values.empty()) return;
  std::vector<Row> rows = {{"case", "tensor", "rank", "index", "stored", "now", "ulps", "ratio"}};
  for (std::size_t i = 0; i < std::min(most, values.size()); ++i) rows.push_back(row_of(values[i]));
  std::vector<std::size_t> widths(rows[0].size());
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  for (const Row& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i)
      line +=
          (i < 4 ? " " + padded(row[i], widths[i]) : " " + padded_left(row[i], widths[i])) + " ";
    say("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
  if (values.size() > most) say("  ... and {} more; --full shows them\n", values.size() - most);
}

void print_differences(const golden::Differences& differences, const GoldenOptions& options) {
  constexpr std::size_t kNotes = 8;
  for (std::size_t i = 0; i < differences.notes.size(); ++i) {
    if (i == kNotes && !options.full) {
      say("  ... and {} more; --full shows them\n", differences.notes.size() - kNotes);
      break;
    }
    say("  {}\n", for_terminal(differences.notes[i]));
  }
  const std::size_t most = options.full                      ? differences.values.size()
                           : options.action == Action::kDiff ? 20
                                                             : 5;
  print_table(differences.values, most);
}

void print_line(const char* status, const std::string& path, const std::string& what) {
  say("{:8}  {}{}{}\n", status, on_one_line(path), what.empty() ? "" : "   ", what);
}

std::string change_text(const GoldenState& state) {
  if (state.differences.values.empty()) return "";
  return count_text(static_cast<long>(state.differences.values.size()), "value");
}

// --- What each action does with one file ---

bool leads_out_of(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  const auto real = [&](const fs::path& p) {
    return fs::weakly_canonical(fs::absolute(p), error);
  };  // it may be missing
  const fs::path relative = real(path).lexically_relative(real(folder));
  return error || relative.empty() || *relative.begin() == "..";
}

// Refuses links: one among the golden files could name a file of another project, and so could the
// folder itself if nobody named it.
void refuse_outside(const std::string& path, const std::string& golden_folder) {
  std::error_code not_a_link;
  // This works for a link without a target, too.
  const fs::path target = fs::read_symlink(path, not_a_link);
  const fs::path meant = not_a_link ? fs::path(path) : fs::path(path).parent_path() / target;
  if (leads_out_of(golden_folder, meant) ||
      (golden_folder == kUsualFolder && leads_out_of(".", golden_folder)))
    throw UserError(
        on_one_line(path) +
        ": a symbolic link leads out of the golden files' folder; nothing is written there");
}

void write(const Entry& entry, const GoldenState& state, const GoldenOptions& options) {
  refuse_outside(entry.path, options.folder);
  const fs::path folder = fs::path(entry.path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw UserError("cannot make " + folder.string() + ": " + error.message());
  write_file_atomically(entry.path, state.text);
}

void settle(Entry& entry, const GoldenOptions& options, Counts& counts) {
  if (!entry.refused.empty()) {
    ++(entry.broken ? counts.broken : counts.refused);
    return print_line(entry.broken ? "ERR" : "refused", entry.scenario->file, entry.refused);
  }
  sort_cases(entry);
  const GoldenState state = golden_state_of(entry);
  if (state.up_to_date) {
    ++counts.up_to_date;
    return;
  }
  if (state.is_foreign) {
    ++counts.refused;
    return print_line("refused", entry.path, "is no golden file, and stays as it is");
  }
  ++(state.is_new ? counts.missing : counts.differ);
  const bool updates = options.action == Action::kUpdate;
  if (updates) write(entry, state, options);
  if (state.is_new)
    return updates ? print_line("new", entry.path, "")
                   : print_line("missing", entry.scenario->file, "has no golden file");
  print_line(updates ? "changed" : "differs", entry.path, change_text(state));
  print_differences(state.differences, options);
}

void report_left_out(const Loaded& loaded) {
  for (const auto& scenario : loaded.scenarios)
    if (has_code(scenario->steps)) print_line("left out", scenario->file, "calls code");
}

bool is_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}

void settle_orphans(const golden::Store& store, const GoldenOptions& options, Counts& counts) {
  for (const std::string& path : store.without_scenario()) {
    const bool asked = options.paths.empty() ||
                       std::any_of(options.paths.begin(), options.paths.end(),
                                   [&](const auto& p) { return is_below(path, store.path_of(p)); });
    if (!asked) continue;
    ++counts.orphaned;
    const auto text = golden::read_if_there(path);
    if (options.action != Action::kUpdate || !text || !looks_golden(*text)) {
      print_line("orphan", path, "has no scenario");
      continue;
    }
    fs::remove(path);
    print_line("removed", path, "its scenario is gone");
  }
}

void print_summary(const Counts& counts, const GoldenOptions& options, double elapsed_s) {
  const bool updates = options.action == Action::kUpdate;
  std::string text = fmt::format("{} up to date", counts.up_to_date);
  const auto add = [&](int n, const char* what) {
    if (n > 0) text += fmt::format(", {} {}", n, what);
  };
  add(counts.missing, updates ? "new" : "missing");
  add(counts.differ, updates ? "changed" : "different");
  add(counts.orphaned, updates ? "removed" : "without a scenario");
  add(counts.refused, "refused");
  add(counts.broken, "not simulated");
  say("{} in {}.\n", text, seconds_text(elapsed_s));
  if (!updates && counts.missing + counts.differ + counts.orphaned > 0)
    say("`distgrad golden update` accepts what the simulation gives now{}.\n",
        options.action == Action::kCheck ? "; `distgrad golden diff` shows more of it" : "");
}

ExitCode exit_code_of(const Counts& counts, const GoldenOptions& options) {
  if (counts.broken > 0) return ExitCode::kBroken;
  if (counts.invalid > 0) return ExitCode::kUserError;
  if (counts.refused > 0) return ExitCode::kNotAsExpected;
  const int changes = counts.missing + counts.differ + counts.orphaned;
  if (changes > 0)
    return options.action == Action::kUpdate ? ExitCode::kAsExpected : ExitCode::kNotAsExpected;
  return counts.up_to_date > 0 ? ExitCode::kAsExpected : ExitCode::kNothingRan;
}

}  // namespace

ExitCode golden_command(const Arguments& arguments) {
  GoldenOptions options;
  if (const auto done = read_options(arguments, options)) return *done;
  const auto started = std::chrono::steady_clock::now();
  const Interrupts interrupts;
  const golden::Store store(options.folder);
  const Loaded loaded = load_cases(options.paths, {});
  report_invalid(loaded.invalid);
  Counts counts;
  counts.invalid = static_cast<int>(loaded.invalid.size());

  Entries entries = entries_for(loaded, store);
  Truths truths(entries, counts);
  verify(cases_of(loaded, entries),
         {.simulate_only = true,
          .every_objective = false,
          .bounds_for_all = true,
          .with_differences = options.action == Action::kUpdate,
          .replace_truth = {}},
         truths);
  if (const int signal = interrupted_by()) {
    complain("distgrad: {}; nothing was written\n", interruption_text(signal));
    return exit_code_of_signal(signal);
  }
  for (auto& [path, entry] : entries) settle(entry, options, counts);
  report_left_out(loaded);
  settle_orphans(store, options, counts);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  print_summary(counts, options, elapsed.count());
  return exit_code_of(counts, options);
}

}  // namespace distgrad
