#include "report/case_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/lines.h"
#include "model/ranks_text.h"
#include "report/objectives_table.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr std::size_t kTables = 4;  // inputs shown without --full
constexpr std::size_t kOutputLines = 20;

constexpr std::string_view kGreen = "\033[32m", kYellow = "\033[33m", kRed = "\033[1;31m";

struct Status {
  std::string_view word;
  std::string_view color;
};

Status status_of(const CaseResult& r) {
  if (r.broken) return {"ERR", kRed};
  if (!r.as_expected)
    return r.verdict == Verdict::kDisputed ? Status{"disp", kYellow} : Status{"skip", kYellow};
  return *r.as_expected ? Status{"ok", kGreen} : Status{"FAIL", kRed};
}

std::string place_text(const Finding& f) {
  std::string text;
  if (!f.step.empty()) text += " in step " + f.step;
  if (!f.collective.empty())
    text += f.step.empty() ? " in " + f.collective : " (" + f.collective + ")";
  return text;
}

std::string error_place(const RankError& e) {
  std::string text(name_of(e.kind));
  if (e.rank >= 0) text += fmt::format(" on rank {}", e.rank);
  if (!e.step.empty()) text += (e.in_backward ? " in the backward of step " : " in step ") + e.step;
  return text;
}

std::string short_line(std::string_view text) {
  constexpr std::size_t kLongest = 160;
  const std::string line = first_line(text);
  return line.size() <= kLongest ? line : line.substr(0, kLongest) + "...";
}

}  // namespace

std::string status_text(const CaseResult& r, bool color) {
  const Status status = status_of(r);
  const std::string word = padded(status.word, 4);
  return color ? fmt::format("{}{}{}", status.color, word, kUncolored) : word;
}

std::string warnings_text(const CaseResult& r, const TextOptions& options) {
  std::vector<std::pair<std::string, std::vector<int>>> by_text;
  for (const Warning& w : r.warnings) {
    const auto found = std::find_if(by_text.begin(), by_text.end(),
                                    [&](const auto& e) { return e.first == w.text; });
    if (found == by_text.end())
      by_text.push_back({w.text, {w.rank}});
    else if (std::find(found->second.begin(), found->second.end(), w.rank) == found->second.end())
      found->second.push_back(w.rank);
  }
  std::string out;
  for (const auto& [text, ranks] : by_text) {
    const std::string words = options.verbose ? text : short_line(text);
    out += wrapped(fmt::format("warning from {}: {}", ranks_text(ranks), for_terminal(words)), 2,
                   options.width);
  }
  return out;
}

std::string outcome_text(const CaseResult& r) {
  const bool expected = r.as_expected.value_or(false);
  const std::string as_expected = expected && r.verdict != Verdict::kMatch ? ", as expected" : "";
  switch (r.verdict) {
    case Verdict::kMatch: {
      const Expectation& wanted = r.which.expected;
      if (!is_wrong(r) || wanted.verdict == Verdict::kMatch) {
        if (is_vacuous(r)) return "match, but vacuous";
        return wanted.finding == "vacuous" ? "match, vacuous as expected" : "match";
      }
      return fmt::format("match, though the file expects {}{}", name_of(wanted.verdict),
                         wanted.finding.empty() ? "" : fmt::format(": {}", wanted.finding.text()));
    }
    case Verdict::kMismatch: {
      const std::string verdict = "mismatch" + as_expected;
      if (r.findings.empty()) return verdict;
      const Finding& first = r.findings.front();
      return fmt::format("{}: {}{}", verdict, first.rule.text(), expected ? "" : place_text(first));
    }
    case Verdict::kError: {
      const std::string verdict = "error" + as_expected;
      if (!r.error) return verdict;
      const std::string message = short_line(r.error->message);
      return verdict + ": " + error_place(*r.error) + (message.empty() ? "" : ": " + message);
    }
    case Verdict::kSkipped:
      // The status says it already if nobody expected it.
      return r.as_expected ? "skipped" + as_expected + ": " + short_line(r.why) : short_line(r.why);
    case Verdict::kDisputed:
      // It stays whole, since its end says what is meant.
      return "disputed" + as_expected + ": " + first_line(r.why);
  }
  return {};
}

namespace {

bool is_plain_match(const Expectation& e) {
  return e.verdict == Verdict::kMatch && e.finding.empty() && e.collective.empty() &&
         e.message.empty() && e.gradients.empty();
}

bool has_observed(const GradientComparison& g) {
  return !g.observed_by_rank.empty() || g.observed_full.has_value();
}

// Writes the inputs' tables: those that differ, or all if asked for, or if a match is what is
// wrong.
std::string tables(const CaseResult& r, const TextOptions& options) {
  const bool all = options.verbose || options.simulated || r.verdict == Verdict::kMatch;
  std::string out;
  std::size_t shown = 0;
  std::vector<std::string> others;
  for (const GradientComparison& g : r.gradients) {
    if ((!all && g.equal) || (!has_observed(g) && !options.simulated)) continue;
    if (shown == kTables && !options.full && !options.verbose) {
      others.push_back(g.input);
      continue;
    }
    ++shown;
    out += objectives_table(
        g, {spelled(r.which.objective), options.full, options.width, options.color});
  }
  if (!others.empty())
    out += wrapped(fmt::format("Not shown (--full does): {}.", fmt::join(others, ", ")), 2,
                   options.width);
  return out;
}

constexpr std::size_t kFormulaIndent = 13;

// Says what the wrong backwards were measured to do, beside what is right, once for each step.
std::string measured_text(const CaseResult& r, const TextOptions& options) {
  std::vector<const Finding*> measured;
  for (const Finding& f : r.findings)
    if (f.measured && (measured.empty() || measured.back()->step != f.step)) measured.push_back(&f);
  std::string out;
  for (const Finding* f : measured) {
    const auto line = [&](std::string_view word, const std::string& formula) {
      const bool names_step = measured.size() > 1 && word == "measured";
      const std::string where = names_step ? " (step " + f->step + ")" : "";
      const std::string shown = options.full ? formula : short_formula(formula);
      std::string text = wrapped(shown + where, kFormulaIndent, options.width);
      return text.replace(2, word.size(), word);
    };
    out += line("measured", f->measured->formula) + line("right", f->measured->right);
  }
  return out;
}

// The first finding tells most readers enough; the others explain the same gradients.
std::string findings_text(const CaseResult& r, const TextOptions& options) {
  if (r.findings.empty()) return {};
  std::string out = wrapped(r.findings.front().text, 2, options.width);
  std::vector<std::string> others;
  for (auto f = r.findings.begin() + 1; f != r.findings.end(); ++f) {
    const std::string name = std::string(f->rule) + place_text(*f);
    if (options.verbose) out += wrapped("Also " + name + ": " + f->text, 2, options.width);
    others.push_back(name);
  }
  if (!others.empty() && !options.verbose)
    out += wrapped(fmt::format("Also: {} (--verbose explains).", fmt::join(others, "; ")), 2,
                   options.width);
  return out;
}

std::string error_text(const CaseResult& r, const TextOptions& options) {
  if (!r.error) return {};
  const std::string host =
      options.host_of && r.error->rank >= 0 ? options.host_of(r.which, r.error->rank) : "";
  const std::string where =
      host.empty()
          ? ""
          : indented(fmt::format("rank {} is on {}", r.error->rank, for_terminal(host)), 4);
  const std::string message = for_terminal(r.error->message);
  if (message == short_line(message)) return where;  // the case's line said the rest
  return indented(message, 4) + where;
}

// Leaves distgrad's own frames out of stacks that Python dumped.
std::string without_own_frames(const std::string& text) {
  std::string out;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const bool is_own =
        line.starts_with("  File \"") && line.find("/distgrad/ranks/") < line.find("\", line ");
    if (!is_own) out += line;
  }
  return out;
}

std::string output_text(const CaseResult& r, const TextOptions& options) {
  std::string out;
  for (std::size_t rank = 0; rank < r.output.size(); ++rank) {
    const std::string& all = r.output[rank];
    const std::string lines =
        indented(for_terminal(options.full ? all : without_own_frames(all)), 4);
    const auto count = static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
    if (count == 0) continue;
    std::size_t skipped = options.full || count <= kOutputLines ? 0 : count - kOutputLines;
    out += fmt::format(
        "  output of rank {}{}:\n", rank,
        skipped > 0 ? fmt::format(", the last {} of {} lines", kOutputLines, count) : "");
    std::size_t at = 0;
    for (; skipped > 0; --skipped) at = lines.find('\n', at) + 1;
    out += lines.substr(at);
  }
  return out;
}

// Says how the case differs from what was expected, if that was more than a match. For a skipped or
// disputed case the first line has the reason.
std::string why_text(const CaseResult& r, const TextOptions& options) {
  const bool has_reason = r.verdict == Verdict::kSkipped || r.verdict == Verdict::kDisputed;
  if (!is_wrong(r) || has_reason || is_plain_match(r.which.expected)) return {};
  return wrapped(for_terminal(r.why) + ".", 2, options.width);
}

std::string losses_text(const CaseResult& r) {
  const auto list = [](const std::vector<double>& losses) {
    std::string text;
    for (std::size_t i = 0; i < losses.size(); ++i)
      text += (i == 0 ? "" : ", ") + number_text(losses[i]);
    return text;
  };
  if (r.simulated_losses.empty()) return {};
  std::string out = "  losses by rank: " + list(r.simulated_losses) + "\n";
  if (!r.distributed_losses.empty() && r.distributed_losses != r.simulated_losses)
    out += "  in the distributed run: " + list(r.distributed_losses) + "\n";
  return out;
}

std::string bounds_text(const CaseResult& r, const TextOptions& options) {
  std::string out;
  for (const GradientComparison& g : r.gradients) {
    if (!has_observed(g)) continue;
    out += fmt::format(
        "  {}: largest error {} (relative {}), {}\n", g.input, number_text(g.max_abs_error, 6),
        number_text(g.max_rel_error, 6),
        g.bound == 0 ? "exact: compared bit by bit" : "bound there " + number_text(g.bound, 6));
  }
  for (const std::string& note : r.bound_notes) out += wrapped(note, 2, options.width);
  for (const std::string& text : r.composed) out += wrapped("composed: " + text, 2, options.width);
  return out;
}

// Expressions, messages and file names in the text come from others. A table has none of these, and
// has colours.
std::string detail(const CaseResult& r, const TextOptions& options) {
  std::string above = measured_text(r, options), below;
  if (options.verbose) above += losses_text(r);
  below += error_text(r, options);
  below += findings_text(r, options);
  below += why_text(r, options);
  for (const std::string& note : r.notes) below += wrapped("note: " + note, 2, options.width);
  below += warnings_text(r, options);
  below += output_text(r, options);
  if (options.verbose)
    below += bounds_text(r, options) + "  took " + seconds_text(r.elapsed_s) + "\n";
  return for_terminal(above) + tables(r, options) + for_terminal(below);
}

}  // namespace

// Keeps a name whole, to be copied. If a terminal is too narrow, the outcome goes below, unless it
// is one word.
std::string named_outcome(const std::string& name, std::size_t name_width,
                          const std::string& outcome, const TextOptions& options) {
  constexpr std::size_t kStatus = 6, kGap = 3, kWord = 12;
  const std::string padded_name = padded(name, name_width);
  const bool fits = kStatus + width_of(padded_name) + kGap + width_of(outcome) <= options.width;
  if (!options.align || fits || width_of(outcome) <= kWord)
    return padded_name + "   " + outcome + "\n";
  return name + "\n" + wrapped(outcome, kStatus, options.width);
}

std::string case_text(const CaseResult& r, const TextOptions& options, std::size_t id_width) {
  std::string out =
      status_text(r, options.color) + "  " +
      named_outcome(on_one_line(r.which.id), id_width, for_terminal(outcome_text(r)), options);
  if (is_wrong(r) || options.verbose || options.simulated)
    out += detail(r, options);
  else if (r.verdict == Verdict::kMatch && r.which.expected.finding.empty())
    out += for_terminal(findings_text(r, options));
  return out;
}

}  // namespace distgrad
