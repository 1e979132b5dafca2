#include "report/case_words.h"

#include <fmt/format.h>

#include "report/case_text.h"
#include "report/words.h"

namespace distgrad {
namespace {

// A rank that prints without end must not make a report so large that GitLab refuses it (30 MB).
constexpr std::size_t kLongestCase = 64 << 10;

std::string on_one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

}  // namespace

std::string headline(const CaseResult& r) {
  const Expectation& expected = r.which.expected;
  if (is_wrong(r) && r.verdict == Verdict::kMatch && expected.verdict != Verdict::kMatch)
    return on_one_line(outcome_text(r));
  const bool has_reason = r.verdict == Verdict::kSkipped || r.verdict == Verdict::kDisputed;
  const bool plain = expected.verdict == Verdict::kMatch && r.verdict != Verdict::kMatch;
  if (!is_wrong(r) || has_reason || plain || r.why.empty()) return on_one_line(outcome_text(r));
  return on_one_line(outcome_text(r) + "; " + r.why);
}

std::string reported_alone(const CaseResult& r, const FormatContext& context) {
  TextOptions options = context.text;
  options.color = false;
  std::string text = case_text(r, options);
  if (text.size() > kLongestCase) {
    const std::size_t left_out = text.size() - kLongestCase;
    text.resize(kLongestCase);
    text += fmt::format("\n  ... {} bytes more are left out here\n", left_out);
  }
  if (is_wrong(r))
    text += fmt::format("Again: {}{}\n", options.again,
                        options.again_names_case ? " " + shell_quoted(r.which.id) : "");
  return text;
}

std::string where_text(const Report& report) {
  std::string text = report.where.empty() ? "" : "Where:\n";
  for (const std::string& sentence : report.where) text += "- " + sentence + "\n";
  return text;
}

std::string problem_text(const InvalidFile& f) {
  std::string text = f.file;
  if (f.position.line > 0) text += fmt::format(":{}:{}", f.position.line, f.position.column);
  if (!f.pointer.empty()) text += ": " + f.pointer;
  text += ": " + f.message;
  return f.caret.empty() ? text : text + "\n" + f.caret;
}

std::string nothing_wrong(const Report& report) {
  const Summary& sum = report.summary;
  const std::string all = count_text(sum.cases, report.unit);
  if (sum.skipped + sum.disputed == 0) return all + ", all as expected";
  std::string text = fmt::format("{}: {} as expected", all, sum.as_expected);
  if (sum.skipped > 0) text += fmt::format(", {} skipped", sum.skipped);
  if (sum.disputed > 0) text += fmt::format(", {} disputed", sum.disputed);
  return text;
}

std::string finding_name(const CaseResult& r) {
  if (r.verdict == Verdict::kError) return std::string(r.error ? name_of(r.error->kind) : "error");
  if (!r.findings.empty()) {
    const Finding& first = r.findings.front();
    return first.collective.empty() ? std::string(first.rule)
                                    : fmt::format("{} ({})", first.rule.text(), first.collective);
  }
  return outcome_text(r);
}

}  // namespace distgrad
