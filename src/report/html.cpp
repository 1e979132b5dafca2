#include "report/html.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/version.h"
#include "model/findings.h"
#include "report/case_words.h"
#include "report/html_data.h"
#include "report/html_matrix.h"
#include "report/html_templates.h"
#include "report/markup.h"
#include "report/words.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

constexpr std::size_t kListed = 2000;  // failures, for readers without scripts
constexpr std::size_t kProblems = 200;
constexpr std::size_t kNotes = 50;
constexpr std::size_t kPrograms = 8;  // named beside a finding

// Replaces "{{name}}" by its value, once: values are not searched again.
std::string filled(std::string_view form, const std::map<std::string_view, std::string>& values) {
  std::string out;
  while (!form.empty()) {
    const std::size_t open = form.find("{{");
    out += form.substr(0, open);
    if (open == std::string_view::npos) break;
    form.remove_prefix(open + 2);
    const std::size_t close = form.find("}}");
    out += values.at(form.substr(0, close));
    form.remove_prefix(close + 2);
  }
  return out;
}

// --- The summary ---

std::string headline_of(const Report& report, const FormatContext& context) {
  const Summary& sum = report.summary;
  std::vector<std::string> wrong;
  if (sum.not_as_expected > 0)
    wrong.push_back(fmt::format("{} not as expected", sum.not_as_expected));
  if (sum.broken > 0) wrong.push_back(fmt::format("{} broken", sum.broken));
  if (!report.invalid.empty())
    wrong.push_back(count_text(static_cast<long>(report.invalid.size()), "problem") +
                    " in files or subjects");
  if (context.broken_off) wrong.push_back("broken off");
  const std::string all = count_text(sum.cases, report.unit);
  if (!wrong.empty()) return fmt::format("{}, of {}", fmt::join(wrong, ", "), all);
  if (sum.cases == 0 || (sum.as_expected == 0 && sum.disputed == 0)) return "Nothing ran";
  return nothing_wrong(report);
}

struct Count {
  std::string_view word, text;
  int count;
};

std::string printed_html(const Report& report) {
  if (report.printed.empty()) return {};
  return "<pre class=\"printed\">" + html_escaped(report.printed) + "</pre>\n";
}

std::string counts_html(const Report& report) {
  const Summary& sum = report.summary;
  const Count counts[] = {{"FAIL", "not as expected", sum.not_as_expected},
                          {"ERR", "broken", sum.broken},
                          {"ok", "as expected", sum.as_expected},
                          {"disp", "disputed", sum.disputed},
                          {"skip", "skipped", sum.skipped}};
  std::string out;
  for (const Count& c : counts)
    out += fmt::format(
        "<li class=\"tile {}{}\"><a href=\"#status={}\"><b>{}</b> <span>{}</span></a></li>\n",
        c.word, c.count == 0 ? " none" : "", c.word, c.count, c.text);
  return out;
}

std::string verdicts_html(const Report& report) {
  int counts[5][3] = {};  // as expected, not, neither
  for (const CaseResult& r : report.cases)
    ++counts[static_cast<std::size_t>(r.verdict)][is_wrong(r) ? 1 : r.as_expected ? 0 : 2];
  std::string out;
  for (std::size_t i = 0; i < 5; ++i) {
    const int all = counts[i][0] + counts[i][1] + counts[i][2];
    if (all > 0)
      out += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                         kVerdicts[i], all, counts[i][0], counts[i][1]);
  }
  return out;
}

// Lists the programs that show a finding, those with the most cases first.
std::string programs_html(std::string_view finding, const std::map<std::string, int>& files) {
  std::vector<std::pair<int, std::string>> by_count;
  for (const auto& [file, count] : files) by_count.emplace_back(-count, file);
  std::sort(by_count.begin(), by_count.end());
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(kPrograms, by_count.size()); ++i)
    shown.push_back(fmt::format("<a href=\"#finding={}&amp;file={}\">{}</a> ({})", finding,
                                encoded(by_count[i].second), html_escaped(by_count[i].second),
                                -by_count[i].first));
  if (by_count.size() > kPrograms)
    shown.push_back(fmt::format("{} more", by_count.size() - kPrograms));
  return shown.empty() ? "" : fmt::format("<p>in {}</p>", fmt::join(shown, ", "));
}

// Counts by the first finding of each case, as the list and its filter do.
std::string findings_html(const Report& report) {
  std::map<std::string_view, std::pair<int, int>> counts;        // as expected, not
  std::map<std::string_view, std::map<std::string, int>> files;  // of those that are not
  for (const CaseResult& r : report.cases)
    if (!r.findings.empty()) {
      auto& [expected, not_expected] = counts[r.findings.front().rule.text()];
      ++(is_wrong(r) ? not_expected : expected);
      if (is_wrong(r)) ++files[r.findings.front().rule.text()][r.which.scenario->file];
    }
  std::string out;
  for (const FindingRow& row : kFindings) {
    const auto found = counts.find(row.name);
    if (found == counts.end()) continue;
    const auto& [expected, not_expected] = found->second;
    out += fmt::format(
        "<tr><th scope=\"row\"><a "
        "href=\"#finding={0}\">{0}</a></th><td>{1}</td><td>{2}</td><td>{3}</td>"
        "<td class=\"prose\">{4}{5}</td></tr>\n",
        row.name, expected + not_expected, expected, not_expected,
        html_prose(is_explained_above(row, report) ? "see above" : row.meaning),
        programs_html(row.name, files[row.name]));
  }
  if (out.empty()) return {};
  return "<h3>By finding</h3>\n<table class=\"counts\"><thead><tr><th "
         "scope=\"col\">finding</th><th "
         "scope=\"col\">cases</th><th scope=\"col\">as expected</th><th scope=\"col\">not</th>"
         "<th scope=\"col\">which means that</th></tr></thead><tbody>\n" +
         out + "</tbody></table>\n";
}

std::string problems_html(const Report& report) {
  if (report.invalid.empty()) return {};
  constexpr std::size_t kUnfolded = 5;
  std::string out = "<h3>Files and subjects that cannot be used</h3>\n<ul class=\"problems\">\n";
  const std::size_t shown = std::min(kProblems, report.invalid.size());
  for (std::size_t i = 0; i < shown; ++i) {
    if (i == kUnfolded)
      out += fmt::format("</ul>\n<details><summary>{} more</summary>\n<ul class=\"problems\">\n",
                         report.invalid.size() - i);
    out += "<li><pre>" + html_escaped(problem_text(report.invalid[i])) + "</pre></li>\n";
  }
  if (shown < report.invalid.size())
    out += fmt::format("<li>... and {} more, left out here</li>\n", report.invalid.size() - shown);
  return out + "</ul>\n" + (shown > kUnfolded ? "</details>\n" : "");
}

// Lists what was not checked, once for all cases to which that applies.
std::string notes_html(const Report& report) {
  std::map<std::string, long> counts;
  for (const CaseResult& r : report.cases)
    for (const std::string& note : r.notes) ++counts[note];
  if (counts.empty()) return {};
  std::string out = "<h3>Not checked</h3>\n<ul>\n";
  std::size_t shown = 0;
  for (const auto& [note, count] : counts) {
    if (shown++ == kNotes) break;
    out += fmt::format("<li>{}: {}</li>\n", count_text(count, "case"), html_prose(note));
  }
  if (counts.size() > kNotes)
    out += fmt::format("<li>... and {} more notes</li>\n", counts.size() - kNotes);
  return out + "</ul>\n";
}

// Says what the file leaves out.
std::string limits_html(const Report& report, const FormatContext& context, const HtmlData& data) {
  std::string out;
  const auto line = [&](const std::string& text) { out += "<li>" + html_prose(text) + "</li>\n"; };
  if (data.without_details > 0)
    line(fmt::format(
        "{} of {} cases are in the list alone, those that matter least: with their details "
        "the file would be too large. --json has them.",
        data.without_details, report.cases.size()));
  if (data.without_maps > 0)
    line(fmt::format(
        "{} of {} cases have no heat maps, for the same reason; `distgrad run CASE --html FILE` "
        "draws those of any.",
        data.without_maps, report.cases.size()));
  std::size_t off = 0, drawn = 0;
  for (const CaseResult& r : report.cases) {
    if (!is_wrong(r)) continue;
    ++off;
    drawn += context.traces && context.traces->contains(r.which.id) ? 1 : 0;
  }
  if (context.traces && drawn < off)
    line(fmt::format(
        "The way of values and cotangents is drawn for {} of the {} cases that are not as "
        "expected, the largest errors first. `distgrad explain CASE` shows it for any.",
        drawn, off));
  return out.empty() ? out : "<h3>What is left out</h3>\n<ul>\n" + out + "</ul>\n";
}

std::string run_html(const Report& report, const FormatContext& context) {
  std::string out;
  const auto row = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, html_escaped(value));
  };
  row("command", report.command);
  row("took", seconds_text(report.summary.elapsed_s));
  row("distgrad", std::string(kVersion));
  row("torch", report.torch);
  row("host", context.host);
  row("ranks", fmt::format("{}", fmt::join(context.hosts, ", ")));
  row("mesh order", fmt::format("{}", fmt::join(context.mesh_order, ", ")));
  return out;
}

// --- Without scripts ---

std::string failures_html(const Report& report) {
  const std::vector<const CaseResult*> wrong = worst_first(report);
  if (wrong.empty()) return "<p>All cases came out as expected.</p>\n";
  std::string out = "<h2>Not as expected, the worst first</h2>\n<ul>\n";
  const std::size_t shown = std::min(kListed, wrong.size());
  for (std::size_t i = 0; i < shown; ++i)
    out += fmt::format("<li><b>{}</b> <code>{}</code>: {}</li>\n", status_word(*wrong[i]),
                       html_escaped(wrong[i]->which.id), html_escaped(headline(*wrong[i])));
  if (shown < wrong.size()) out += fmt::format("<li>... and {} more</li>\n", wrong.size() - shown);
  return out + "</ul>\n";
}

std::string details_html(const HtmlData& data) {
  std::string out;
  for (std::size_t i = 0; i < data.pieces.size(); ++i)
    out += fmt::format("<script type=\"application/json\" id=\"details-{}\">{}</script>\n", i,
                       data.pieces[i]);
  return out;
}

std::string script() {
  std::string out;
  for (const std::string_view part : {kText_js, kProgram_js, kHeat_map_js, kMatrix_js,
                                      kValue_trace_js, kCase_js, kList_js, kReport_js})
    out += part;
  return out;
}

}  // namespace

std::string html_report(const Report& report, const FormatContext& context) {
  const HtmlData data = html_data(report, context);
  const bool is_wrong_run = report.summary.not_as_expected > 0 || report.summary.broken > 0 ||
                            !report.invalid.empty() || context.broken_off;
  const std::string headline = html_escaped(headline_of(report, context));
  const std::string early =
      context.ended_early.empty()
          ? ""
          : "<p class=\"early\"><b>Not complete</b>: " + html_escaped(context.ended_early) +
                ".</p>";
  return filled(kReport_html, {{"title", "distgrad: " + headline},
                               {"css", std::string(kReport_css)},
                               {"state", is_wrong_run ? "wrong" : "right"},
                               {"headline", headline},
                               {"early", early},
                               {"printed", printed_html(report)},
                               {"counts", counts_html(report)},
                               {"verdicts", verdicts_html(report)},
                               {"picture", report.picture ? picture_html(*report.picture) : ""},
                               {"matrix", report.picture ? "" : matrix_html(report)},
                               {"findings", findings_html(report)},
                               {"problems", problems_html(report)},
                               {"notes", notes_html(report)},
                               {"limits", limits_html(report, context, data)},
                               {"run", run_html(report, context)},
                               {"failures", failures_html(report)},
                               {"index", data.index},
                               {"texts", data.texts},
                               {"details", details_html(data)},
                               {"js", script()}});
}

}  // namespace distgrad
