#include "report/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "model/findings.h"
#include "report/case_words.h"
#include "report/markup.h"
#include "report/valid_text.h"
#include "report/words.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

constexpr std::size_t kLongest = 1'000'000;  // bytes; GitHub's limit is 1 MiB for a step
// Keeps room for what may follow the current part: the later sections, and what was left out.
constexpr std::size_t kReserve = 20'000;
constexpr std::size_t kShownInFull = 20;  // cases; somebody still reads such a page
constexpr std::size_t kLongestPrinted = 16'000;
constexpr std::size_t kLongestLine = 400;
constexpr std::size_t kReasons = 20;       // for skipped and for disputed cases
constexpr std::size_t kInvalidFiles = 50;  // of invalid files

// --- Text in Markdown ---

// Puts text on one line and cuts it.
std::string shortened(std::string_view text, std::size_t longest) {
  std::string line = valid_text(text);
  for (char& c : line)
    if (c == '\n' || c == '\t') c = ' ';
  if (line.size() <= longest) return line;
  line.resize(longest);
  return valid_text(line) + "...";
}

// Escapes prose, so that nothing in it is taken for markup.
std::string prose(std::string_view text) {
  constexpr std::string_view kMarkup = "\\`*_[]<>|~#&$";
  std::string out;
  for (const char c : shortened(text, kLongestLine)) {
    if (kMarkup.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::size_t longest_run(std::string_view text, char wanted) {
  std::size_t longest = 0, run = 0;
  for (const char c : text) longest = std::max(longest, run = c == wanted ? run + 1 : 0);
  return longest;
}

// Makes a code span, also for tables, where a bar would end the cell even within backticks.
std::string code(std::string_view text) {
  std::string inside;
  for (const char c : shortened(text, kLongestLine)) {
    if (c == '|') inside += '\\';
    inside += c;
  }
  const std::size_t ticks = longest_run(inside, '`');
  if (ticks == 0) return "`" + inside + "`";
  const std::string fence(ticks + 1, '`');
  return fence + " " + inside + " " + fence;
}

std::string code_block(std::string_view text) {
  std::string inside = valid_text(text.substr(0, kLongestPrinted));
  if (text.size() > kLongestPrinted)
    inside += fmt::format("\n... {} bytes more are left out here", text.size() - kLongestPrinted);
  if (!inside.ends_with('\n')) inside += '\n';
  const std::string fence(std::max<std::size_t>(3, longest_run(inside, '`') + 1), '`');
  return fence + "text\n" + inside + fence + "\n";
}

std::string html(std::string_view text) { return markup_escaped(shortened(text, kLongestLine)); }

// --- Its parts ---

std::string title(const Report& report, const FormatContext& context) {
  const Summary& sum = report.summary;
  std::vector<std::string> wrong;
  if (sum.broken > 0) wrong.push_back(fmt::format("{} broken", sum.broken));
  if (sum.not_as_expected > 0)
    wrong.push_back(fmt::format("{} not as expected", sum.not_as_expected));
  if (!report.invalid.empty())
    wrong.push_back(count_text(static_cast<long>(report.invalid.size()), "problem") +
                    " in files or subjects");
  if (context.broken_off) wrong.push_back("broken off");
  const std::string all = count_text(sum.cases, report.unit);
  if (!wrong.empty()) return fmt::format("## distgrad: {}, of {}\n\n", fmt::join(wrong, ", "), all);
  if (sum.as_expected == 0 && sum.disputed == 0) return "## distgrad: nothing ran\n\n";
  return fmt::format("## distgrad: {}\n\n", nothing_wrong(report));
}

std::string counts(const Report& report) {
  const Summary& sum = report.summary;
  return fmt::format(
      "| as expected | not as expected | broken | skipped | disputed | took |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: |\n"
      "| {} | {} | {} | {} | {} | {} |\n\n",
      sum.as_expected, sum.not_as_expected, sum.broken, sum.skipped, sum.disputed,
      seconds_text(sum.elapsed_s));
}

std::string problems(const Report& report) {
  if (report.invalid.empty()) return {};
  std::string out = "### Files and subjects that cannot be used\n\n";
  const std::size_t shown = std::min(kInvalidFiles, report.invalid.size());
  for (std::size_t i = 0; i < shown; ++i) {
    InvalidFile f = report.invalid[i];
    f.caret.clear();  // it shows a place in a line of code
    out += "- " + prose(problem_text(f)) + "\n";
  }
  if (shown < report.invalid.size())
    out += fmt::format("- ... and {} more, left out here\n", report.invalid.size() - shown);
  return out + "\n";
}

// Shows at a glance what is wrong, the most frequent first, with the worst case of each.
std::string by_finding(const Report& report) {
  struct SameFinding {
    int count = 0;
    const CaseResult* worst = nullptr;
  };
  std::map<std::string, SameFinding> failures;
  for (const CaseResult* r : worst_first(report)) {
    SameFinding& alike = failures[finding_name(*r)];
    if (++alike.count == 1) alike.worst = r;
  }
  if (failures.empty()) return {};
  std::vector<std::pair<std::string, SameFinding>> rows(failures.begin(), failures.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.count > b.second.count; });
  std::string out =
      fmt::format("| finding | {}s | the worst | which means that |\n| --- | ---: | --- | --- |\n",
                  report.unit);
  const std::size_t shown = std::min(kReasons, rows.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [name, alike] = rows[i];
    const std::vector<Finding>& findings = alike.worst->findings;
    const std::string_view meaning = findings.empty() || findings.front().rule.empty()
                                         ? ""
                                         : findings.front().rule.row().meaning;
    out += fmt::format("| {} | {} | {} | {} |\n", prose(name), alike.count,
                       code(alike.worst->which.id), prose(meaning));
  }
  if (shown < rows.size())
    out += fmt::format("\n{} more findings are left out here.\n", rows.size() - shown);
  return out + "\n";
}

std::string in_full(const CaseResult& r, const FormatContext& context) {
  return fmt::format("<details><summary><code>{}</code>: {}</summary>\n\n{}\n</details>\n\n",
                     html(r.which.id), html(headline(r)), code_block(reported_alone(r, context)));
}

std::string as_row(const CaseResult& r) {
  return fmt::format("| {} | {} |\n", code(r.which.id), prose(headline(r)));
}

// Writes the worst cases in full, then as many as fit, a line each.
std::string wrong_cases(const Report& report, const FormatContext& context, std::size_t used) {
  const std::vector<const CaseResult*> wrong = worst_first(report);
  if (wrong.empty()) return {};
  std::string out = "### Not as expected, the worst first\n\n";
  const auto fits = [&](const std::string& more) {
    return used + out.size() + more.size() + kReserve <= kLongest;
  };
  std::size_t shown = 0;
  for (; shown < std::min(kShownInFull, wrong.size()); ++shown) {
    const std::string text = in_full(*wrong[shown], context);
    if (!fits(text)) break;
    out += text;
  }
  if (shown < wrong.size()) out += "| case | what happened |\n| --- | --- |\n";
  const std::size_t full = shown;
  for (; shown < wrong.size(); ++shown) {
    const std::string row = as_row(*wrong[shown]);
    if (!fits(row)) break;
    out += row;
  }
  if (shown > full) out += "\n";
  if (shown > full)
    out += fmt::format("The first {} are shown in full, {} by a line each.\n", full, shown - full);
  if (shown < wrong.size())
    out += fmt::format(
        "**{} of the {} {}s that are not as expected or broken are left out**: a summary holds "
        "1 MiB at most. The other reports have all of them.\n",
        wrong.size() - shown, wrong.size(), report.unit);
  return out + "\n";
}

// Shows each reason once.
std::string unjudged_cases(const Report& report, Verdict verdict, std::string_view heading) {
  std::vector<std::pair<std::string, int>> reasons;
  for (const CaseResult& r : report.cases) {
    if (r.as_expected || r.broken || r.verdict != verdict) continue;
    const auto found = std::find_if(reasons.begin(), reasons.end(),
                                    [&](const auto& known) { return known.first == r.why; });
    if (found == reasons.end())
      reasons.emplace_back(r.why, 1);
    else
      ++found->second;
  }
  if (reasons.empty()) return {};
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out = fmt::format("### {}\n\n", heading);
  const std::size_t shown = std::min(kReasons, reasons.size());
  for (std::size_t i = 0; i < shown; ++i)
    out +=
        fmt::format("- {}: {}\n", count_text(reasons[i].second, "case"), prose(reasons[i].first));
  if (shown < reasons.size())
    out += fmt::format("- ... for {} more reasons, left out here\n", reasons.size() - shown);
  return out + "\n";
}

}  // namespace

std::string markdown_report(const Report& report, const FormatContext& context) {
  std::string out = title(report, context);
  if (!context.ended_early.empty())
    out += "**Not complete**: " + prose(context.ended_early) + ".\n\n";
  if (!report.printed.empty()) out += code_block(report.printed) + "\n";
  out += by_finding(report) + counts(report) + problems(report);
  out += wrong_cases(report, context, out.size());
  out += unjudged_cases(report, Verdict::kSkipped, "Skipped");
  out += unjudged_cases(report, Verdict::kDisputed, "Disputed");
  const std::string torch = report.torch.empty() ? "" : ", torch " + report.torch;
  return out + prose(report.command + torch) + "\n";
}

}  // namespace distgrad
