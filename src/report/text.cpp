#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/case_words.h"
#include "report/words.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

constexpr std::size_t kFoldAbove = 60;   // cases; a screen or two
constexpr int kAlike = 3;                // of one finding, shown when cases are folded
constexpr std::size_t kWidestName = 72;  // longer ones stick out rather than push all others away
constexpr std::size_t kNamesAgain = 3;

std::string again_text(const Report& report, const TextOptions& options) {
  std::vector<std::string> ids;
  for (const CaseResult& r : report.cases)
    if (is_wrong(r)) ids.push_back(on_one_line(shell_quoted(r.which.id)));
  if (ids.empty()) return {};
  if (ids.size() <= kNamesAgain)
    return fmt::format("Again: {} {}", options.again, fmt::join(ids, " "));
  return fmt::format("Again, the first: {} {}", options.again, ids.front());
}

std::string summary_text(const Report& report, const TextOptions& options) {
  const Summary& sum = report.summary;
  if (sum.cases == 0 && report.invalid.empty()) return "No case was run.\n";
  std::string text = options.simulated && sum.not_as_expected == 0
                         ? count_text(sum.as_expected, "case") + " simulated"
                         : fmt::format("{} as expected", sum.as_expected);
  const auto vacuous = std::count_if(report.cases.begin(), report.cases.end(), is_vacuous);
  if (vacuous > 0) text += fmt::format(" ({} vacuous)", vacuous);
  if (sum.not_as_expected > 0) text += fmt::format(", {} not", sum.not_as_expected);
  if (sum.broken > 0) text += fmt::format(", {} broken", sum.broken);
  if (sum.skipped > 0) text += fmt::format(", {} skipped", sum.skipped);
  if (sum.disputed > 0) text += fmt::format(", {} disputed", sum.disputed);
  std::set<std::string> invalid_files;  // a file may have several problems
  for (const InvalidFile& f : report.invalid) invalid_files.insert(f.file);
  if (!invalid_files.empty())
    text += ", " + count_text(static_cast<long>(invalid_files.size()), "invalid file");
  text += " in " + seconds_text(sum.elapsed_s) + ".";
  const std::string again = again_text(report, options);
  if (again.empty()) return text + "\n";
  return text + (text.size() + again.size() < options.width ? " " : "\n") + again + "\n";
}

// Lists what the reports leave unchecked, once for all cases to which that applies.
std::string notes_text(const Report& report, const TextOptions& options) {
  std::vector<std::pair<std::string, long>> counts;
  for (const CaseResult& r : report.cases) {
    for (const std::string& note : r.notes) {
      const auto found = std::find_if(counts.begin(), counts.end(),
                                      [&](const auto& e) { return e.first == note; });
      if (found == counts.end())
        counts.emplace_back(note, 1);
      else
        ++found->second;
    }
  }
  std::string out;
  for (const auto& [note, count] : counts)
    out += wrapped(fmt::format("Note ({}): {}", count_text(count, "case"), for_terminal(note)), 0,
                   options.width);
  return out;
}

// Writes the last line of a run with several failures: which they are, the most frequent first.
template <class Failures>
std::string by_finding(const Failures& failures, const TextOptions& options) {
  std::vector<std::pair<int, std::string>> counts;
  int all = 0;
  for (const auto& [finding, alike] : failures) {
    counts.emplace_back(-alike.cases, finding);
    all += alike.cases;
  }
  if (all < 2) return {};
  std::sort(counts.begin(), counts.end());
  std::vector<std::string> texts;
  for (const auto& [count, finding] : counts)
    texts.push_back(fmt::format("{} {}", -count, for_terminal(finding)));
  return wrapped(fmt::format("By finding: {}.", fmt::join(texts, ", ")), 0, options.width);
}

}  // namespace

TextReport::TextReport(TextOptions options, std::span<const Case> cases)
    : options_(std::move(options)), folds_(cases.size() > kFoldAbove && !options_.verbose) {
  if (!options_.align || folds_) return;
  for (const Case& c : cases)
    id_width_ = std::max(id_width_, std::min(kWidestName, width_of(c.id)));
}

std::string TextReport::add(const CaseResult& r) {
  const bool wrong = is_wrong(r);
  const bool is_shown = !wrong || is_among_the_first(r) || options_.full;
  if (options_.quiet && !wrong) return {};
  if (!folds_) return case_text(r, options_, id_width_);
  std::string out;
  const std::string& file = r.which.scenario->file;
  if (file != file_) {
    out = folded_lines();
    file_ = file;
  }
  if (wrong) {
    if (is_shown) detailed_ += case_text(r, options_);
    return out;
  }
  const bool as_expected = r.as_expected.value_or(false) && !is_vacuous(r);
  const std::string group = fmt::format("{}|{}", status_text(r, options_.color),
                                        as_expected ? "as expected" : outcome_text(r));
  if (group_sizes_[group]++ == 0) groups_.push_back(group);
  return out;
}

std::string TextReport::folded_lines() {
  std::string out;
  for (const std::string& group : groups_) {
    const std::size_t bar = group.find('|');
    const std::string what = group.substr(bar + 1);
    const std::string outcome = fmt::format("{}{}{}", count_text(group_sizes_[group], "case"),
                                            what == "as expected" ? " " : ": ", for_terminal(what));
    out += group.substr(0, bar) + "  " + named_outcome(on_one_line(file_), 0, outcome, options_);
  }
  out += detailed_;
  groups_.clear();
  group_sizes_.clear();
  detailed_.clear();
  return out;
}

bool TextReport::is_among_the_first(const CaseResult& wrong) {
  SameFinding& alike = failures_[finding_name(wrong)];
  const auto bad = badness(wrong);
  if (alike.cases == 0 || bad > alike.badness) alike.worst = wrong.which.id, alike.badness = bad;
  return ++alike.cases <= kAlike;
}

// Says how many more there are of each finding.
std::string TextReport::alike_lines() const {
  std::string out;
  for (const auto& [finding, alike] : failures_) {
    if (!folds_ || options_.full || alike.cases <= kAlike) continue;
    out += fmt::format("...   {} more: {} (--full shows all)\n",
                       count_text(alike.cases - kAlike, "case"), for_terminal(finding));
    out += wrapped("The worst of them all: " + on_one_line(alike.worst), 6, options_.width);
  }
  return out;
}

std::string TextReport::finish(const Report& report) {
  std::string out = folded_lines() + alike_lines();
  if (!options_.quiet && report.summary.cases > 0) out += "\n";
  if (!options_.quiet) out += notes_text(report, options_);
  return out + summary_text(report, options_) + by_finding(failures_, options_);
}

std::string text_report(const Report& report, const TextOptions& options) {
  std::vector<Case> cases;
  for (const CaseResult& r : report.cases) cases.push_back(r.which);
  TextReport text(options, cases);
  std::string out;
  for (const CaseResult& r : report.cases) out += text.add(r);
  return out + text.finish(report);
}

}  // namespace distgrad
