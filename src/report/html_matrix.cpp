#include "report/html_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "report/case_text.h"
#include "report/markup.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

constexpr std::size_t kFiles = 300, kSubjects = 40;
constexpr std::size_t kColors = 6;  // as in report.css; further findings share the last

using Cases = std::vector<const CaseResult*>;

struct Matrix {
  std::vector<std::string> files, subjects;  // in the report's order, files with failures first
  std::map<std::pair<std::string, std::string>, Cases> cells;
  std::map<std::string, std::size_t> colors;  // of findings, the most frequent first
};

std::string finding_of(const CaseResult& r) {
  if (r.verdict == Verdict::kError) return std::string(r.error ? name_of(r.error->kind) : "error");
  if (r.findings.empty()) return "";
  return r.findings.front().rule;
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

Matrix matrix_of(const Report& report) {
  Matrix m;
  std::vector<std::string> failing, others;
  std::map<std::string, int> counts;
  for (const CaseResult& r : report.cases) {
    const std::string& file = r.which.scenario->file;
    m.cells[{file, r.which.subject}].push_back(&r);
    add_once(m.subjects, r.which.subject);
    add_once(is_wrong(r) ? failing : others, file);
    if (const std::string finding = finding_of(r); !finding.empty()) ++counts[finding];
  }
  m.files = failing;
  for (const std::string& file : others) add_once(m.files, file);
  std::vector<std::pair<int, std::string>> by_count;
  for (const auto& [finding, count] : counts) by_count.emplace_back(-count, finding);
  std::sort(by_count.begin(), by_count.end());
  for (std::size_t i = 0; i < by_count.size(); ++i)
    m.colors[by_count[i].second] = std::min(i, kColors - 1);
  return m;
}

// Returns the worst case. If all came out as expected, it prefers one that says more than that it
// matches.
const CaseResult& worst_of(const Cases& cases) {
  const auto key = [](const CaseResult* r) {
    return std::tuple(is_wrong(*r), is_wrong(*r) ? badness(*r) : std::pair(0, 0.0),
                      r->verdict != Verdict::kMatch);
  };
  return **std::max_element(cases.begin(), cases.end(),
                            [&](const auto* a, const auto* b) { return key(a) < key(b); });
}

std::string word_of(const CaseResult& r) {
  if (!r.as_expected) return r.verdict == Verdict::kDisputed ? "disp" : "skip";
  const std::string finding = finding_of(r);
  if (!finding.empty()) return finding;
  if (r.verdict == Verdict::kMatch) return is_wrong(r) ? "match" : "ok";
  return r.verdict == Verdict::kDisputed  ? "disp"
         : r.verdict == Verdict::kSkipped ? "skip"
                                          : "mismatch";
}

std::string cell_html(const Matrix& m, const std::string& file, const std::string& subject) {
  const auto found = m.cells.find({file, subject});
  if (found == m.cells.end()) return "<td></td>";
  const CaseResult& worst = worst_of(found->second);
  const auto wrong = std::count_if(found->second.begin(), found->second.end(),
                                   [](const CaseResult* r) { return is_wrong(*r); });
  const auto color = m.colors.find(finding_of(worst));
  const std::string of_finding = color == m.colors.end() ? "" : fmt::format(" c{}", color->second);
  const std::string count = wrong > 1 ? fmt::format(" <small>{}</small>", wrong) : "";
  return fmt::format(
      "<td class=\"{}{}\"><a href=\"#file={}&amp;subject={}\" title=\"{}\">{}{}</a></td>",
      wrong > 0 ? "off" : "as-expected", of_finding, encoded(file), encoded(subject),
      html_escaped(outcome_text(worst)), html_escaped(word_of(worst)), count);
}

// Returns the length of the folder that all names begin with, which would fill half of a phone.
std::size_t common_folder(const std::vector<std::string>& files) {
  std::size_t length = files[0].rfind('/') + 1;  // 0 where there is none
  for (const std::string& file : files)
    while (length > 0 && !file.starts_with(std::string_view(files[0]).substr(0, length)))
      length = length < 2 ? 0 : files[0].rfind('/', length - 2) + 1;
  return length;
}

std::string row_heading(const std::string& file, std::size_t folder) {
  std::string_view name = std::string_view(file).substr(folder);
  if (name.ends_with(".json")) name.remove_suffix(5);
  return fmt::format("<th scope=\"row\" title=\"{}\">{}</th>", html_escaped(file),
                     html_escaped(name));
}

// Keeps the heading in sight if there are more rows than a screen has.
std::string_view frame_of(std::size_t rows) {
  constexpr std::size_t kScreen = 24;
  return rows > kScreen ? "<div class=\"wide tall\">" : "<div class=\"wide\">";
}

std::string_view class_of(Picture::Tone tone) {
  switch (tone) {
    case Picture::Tone::kRight:
      return "right";
    case Picture::Tone::kWrong:
      return "off";
    case Picture::Tone::kUnclear:
      return "unclear";
    case Picture::Tone::kNone:
      break;
  }
  return "none";
}

}  // namespace

std::string encoded(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~/";
  std::string out;
  for (const char c : text)
    out += kPlain.find(c) != kPlain.npos ? std::string(1, c)
                                         : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

std::string matrix_html(const Report& report) {
  const Matrix m = matrix_of(report);
  if (m.files.size() < 2 || m.subjects.size() < 2) return {};
  const std::size_t columns = std::min(kSubjects, m.subjects.size()),
                    rows = std::min(kFiles, m.files.size());
  const std::size_t folder = common_folder(m.files);
  std::string out = fmt::format(
      "<h3>By scenario and subject</h3>\n{}<table class=\"matrix-of-cases\"><thead><tr><td></td>",
      frame_of(rows));
  for (std::size_t s = 0; s < columns; ++s)
    out += fmt::format("<th scope=\"col\">{}</th>", html_escaped(m.subjects[s]));
  out += "</tr></thead><tbody>\n";
  for (std::size_t f = 0; f < rows; ++f) {
    out += "<tr>" + row_heading(m.files[f], folder);
    for (std::size_t s = 0; s < columns; ++s) out += cell_html(m, m.files[f], m.subjects[s]);
    out += "</tr>\n";
  }
  out +=
      "</tbody></table></div>\n<p class=\"legend\">Filled: not as expected, in its finding's "
      "colour, with the number of such cases; a bar at the left: wrong as the file expects.";
  if (rows < m.files.size())
    out += fmt::format(" {} more files are left out.", m.files.size() - rows);
  if (columns < m.subjects.size())
    out += fmt::format(" {} more subjects are left out.", m.subjects.size() - columns);
  return out + "</p>\n";
}

std::string picture_html(const Picture& picture) {
  if (picture.rows.empty()) return {};
  const std::size_t rows = std::min(kFiles, picture.rows.size());
  std::string out =
      fmt::format("<h3>{}</h3>\n{}<table class=\"matrix-of-cases picture\"><thead><tr><td></td>",
                  html_escaped(picture.title), frame_of(rows));
  for (const std::string& column : picture.columns)
    out += fmt::format("<th scope=\"col\">{}</th>", html_escaped(column));
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < rows; ++i) {
    out += fmt::format("<tr><th scope=\"row\">{}</th>", html_escaped(picture.rows[i].label));
    for (const Picture::Square& s : picture.rows[i].squares)
      out += fmt::format("<td class=\"{}\" title=\"{}\">{}</td>", class_of(s.tone),
                         html_escaped(s.title), html_escaped(s.word));
    out += "</tr>\n";
  }
  out += fmt::format("</tbody></table></div>\n<p class=\"legend\">{}", html_prose(picture.legend));
  if (rows < picture.rows.size())
    out += fmt::format(" {} more rows are left out.", picture.rows.size() - rows);
  return out + "</p>\n";
}

}  // namespace distgrad
