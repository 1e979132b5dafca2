#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "dumps/comparison_report.h"
#include "dumps/patterns.h"
#include "model/ranks_text.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

constexpr std::size_t kGroups = 12;     // shown without --full
constexpr std::size_t kPatterns = 5;    // of a group
constexpr std::size_t kRows = 8;        // also of a group
constexpr std::size_t kLeastHead = 16;  // columns of a line before it goes on below

std::string thousands(std::size_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string parameters_text(std::size_t n) {
  return thousands(n) + (n == 1 ? " parameter" : " parameters");
}

std::string status_of(const ParameterResult& r) {
  if (r.is_right()) return "ok";
  return r.explanation == Explanation::kUnclear ? "skip"
         : r.explanation == Explanation::kClose ? "near"
                                                : "FAIL";
}

std::string error_text(double relative) {
  return std::isfinite(relative) ? number_text(relative, 2) + " of its norm" : "infinitely";
}

// Writes two numbers that differ, with as many digits as that takes.
std::pair<std::string, std::string> told_apart(double a, double b) {
  int digits = 6;
  while (digits < 17 && number_text(a, digits) == number_text(b, digits)) ++digits;
  return {number_text(a, digits), number_text(b, digits)};
}

std::string row_text(const ParameterResult& r) {
  if (!r.worst) return r.headline;
  const auto [observed, expected] = told_apart(r.worst->observed, r.worst->expected);
  const std::string ranks = r.worst->ranks.empty() ? "" : ranks_text(r.worst->ranks);
  const std::string index = index_text(r.worst->index);
  return fmt::format("off by {}; {}{}{}: {}, reference {}", number_text(r.relative_error, 2), ranks,
                     ranks.empty() || index.empty() ? "" : " ", index, observed, expected);
}

// Lists the first members of a group, if each is to be shown.
std::string rows_text(const ResultGroup& g, const ComparisonTextOptions& options) {
  const std::size_t shown = options.full ? g.members.size() : std::min(kRows, g.members.size());
  std::size_t width = 0;
  for (std::size_t i = 0; i < shown; ++i)
    width = std::max(width, std::min<std::size_t>(40, width_of(g.members[i]->name)));
  std::string out;
  for (std::size_t i = 0; i < shown; ++i) {
    const ParameterResult& r = *g.members[i];
    const std::string text = g.each_in_its_own_words() ? r.headline : row_text(r);
    out += fmt::format("      {}   {}\n", padded(for_terminal(r.name), width), for_terminal(text));
  }
  if (shown < g.members.size())
    out += fmt::format("      ... and {} more\n", thousands(g.members.size() - shown));
  return out;
}

// Continues a line that is too long below it, indented. Keeps the line's own spaces.
std::string hanging(const std::string& line, std::size_t width) {
  if (width_of(line) <= width) return line + "\n";
  std::size_t end = line.size();
  while (width_of(line.substr(0, end)) > width) {
    const std::size_t space = line.rfind(' ', end - 1);
    if (space == std::string::npos || space < kLeastHead) return line + "\n";
    end = space;
  }
  const std::string head = line.substr(0, line.find_last_not_of(' ', end) + 1);
  return head + "\n" + wrapped(line.substr(end + 1), 6, width);
}

std::string group_name(const ResultGroup& g) {
  if (g.patterns.size() == 1) return for_terminal(g.patterns.front());
  return parameters_text(g.members.size());
}

std::string group_text(const ResultGroup& g, const ComparisonTextOptions& options) {
  const ParameterResult& worst = *g.members.front();
  std::string out = hanging(fmt::format("{}  {}   {}", padded(status_of(worst), 4), group_name(g),
                                        for_terminal(g.headline)),
                            options.width);
  const auto add = [&](const std::string& text) {
    if (!text.empty()) out += wrapped(for_terminal(text), 6, options.width);
  };
  const bool rows = g.members.size() > 1 && g.is_in_order();
  if (g.patterns.size() > 1 && !rows) {
    const std::size_t shown =
        options.full ? g.patterns.size() : std::min(kPatterns, g.patterns.size());
    std::string list =
        fmt::format("{}", fmt::join(g.patterns.begin(),
                                    g.patterns.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
    if (shown < g.patterns.size()) list += fmt::format("; and {} more", g.patterns.size() - shown);
    add(list);
  }
  if (!g.common.empty()) add("In common: " + g.common + ".");
  add(advice_of(worst));
  if (rows) return out + rows_text(g, options);
  if (worst.worst) add((g.members.size() > 1 ? "Worst: " : "") + worst_text(worst) + ".");
  return out;
}

std::string right_text(const DumpComparison& c, std::size_t width) {
  std::size_t right = 0, bitwise = 0, noise = 0;
  double error = 0, rtol = 0;
  for (const ParameterResult& r : c.parameters) {
    noise += r.explanation == Explanation::kNoise ? 1 : 0;
    if (r.explanation != Explanation::kRight) continue;
    ++right;
    bitwise += r.bitwise ? 1 : 0;
    rtol = std::max(rtol, r.rtol);
    if (std::isfinite(r.relative_error)) error = std::max(error, r.relative_error);
  }
  std::string out;
  if (right > 0) {
    const std::string how = bitwise == right
                                ? "bit for bit"
                                : fmt::format("to {} of the norm or better (tolerance {})",
                                              number_text(error, 2), number_text(rtol, 2));
    out += hanging(fmt::format("ok    {}   right, {}", parameters_text(right), how), width);
  }
  if (noise > 0)
    out += hanging(
        fmt::format("ok    {}   not judged: no larger than rounding beside the model's largest",
                    parameters_text(noise)),
        width);
  return out;
}

std::string line_of(const ParameterResult& r, std::size_t width) {
  std::string how = r.headline;
  if (r.explanation == Explanation::kRight)
    how = r.bitwise ? "right, bit for bit"
                    : fmt::format("right, to {} (tolerance {})", error_text(r.relative_error),
                                  number_text(r.rtol, 2));
  else if (r.worst)
    how += fmt::format("; off by {}", error_text(r.relative_error));
  return fmt::format("{}  {}   {}\n", padded(status_of(r), 4), padded(for_terminal(r.name), width),
                     for_terminal(how));
}

std::string every_line(const DumpComparison& c) {
  std::size_t width = 0;
  for (const ParameterResult& r : c.parameters)
    width = std::max(width, std::min<std::size_t>(60, width_of(r.name)));
  std::string out = "\n";
  for (const ParameterResult& r : c.parameters) out += line_of(r, width);
  return out;
}

std::string summary_text(const DumpComparison& c) {
  std::map<Explanation, std::size_t> counts;
  std::size_t forgiven = 0;
  for (const ParameterResult& r : c.parameters) {
    ++counts[r.explanation];
    forgiven += r.explanation == Explanation::kClose && r.is_forgiven ? 1 : 0;
  }
  const std::size_t right = counts[Explanation::kRight], noise = counts[Explanation::kNoise],
                    near = counts[Explanation::kClose], unclear = counts[Explanation::kUnclear],
                    wrong = c.parameters.size() - right - noise - near - unclear;
  std::vector<std::string> axes;
  for (const DumpAxis& axis : c.mesh) axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  std::string world = c.world_size == 0 ? "" : " on " + count_text(c.world_size, "rank");
  if (!axes.empty()) world += fmt::format(" ({})", fmt::join(axes, " x "));
  std::string text =
      fmt::format("{}{}: {} right", parameters_text(c.parameters.size()), world, thousands(right));
  if (wrong > 0) text += fmt::format(", {} not", thousands(wrong));
  if (near > forgiven) text += fmt::format(", {} near, not right", thousands(near - forgiven));
  if (forgiven > 0) text += fmt::format(", {} near, which is not counted", thousands(forgiven));
  if (noise > 0) text += fmt::format(", {} not judged", thousands(noise));
  if (unclear > 0) text += fmt::format(", {} cannot be judged", thousands(unclear));
  if (!c.absent_ranks.empty()) text += "; no file of " + ranks_text(c.absent_ranks);
  return text + ".\n";
}

}  // namespace

std::string advice_of(const ParameterResult& r) {
  if (r.explanation == Explanation::kScaled && !r.factor_known)
    return "One constant, which is the size of nothing known here (--count NAME=N names more).";
  if (r.is_forgiven)
    return "Not counted: float16 and bfloat16 round that far (a loss in float32, another order of "
           "sums). A run in float32 would tell a small mistake from it.";
  const ExplanationRow& row = row_of(r.explanation);
  if (r.explanation == Explanation::kClose && r.finding == "unexplained")
    return "It is not said by what: a small mistake (an epsilon, a few tokens, dropout) leaves "
           "such differences, and so does a run that computed in a shorter dtype (autocast, TF32, "
           "a compressed all-reduce). If that is meant, a larger rtol says so.";
  return r.finding == row.finding || r.finding.empty() ? std::string(row.meaning) : "";
}

std::string worst_text(const ParameterResult& r) {
  const std::string where = r.worst->ranks.empty() ? "" : " on " + ranks_text(r.worst->ranks);
  const auto [observed, expected] = told_apart(r.worst->observed, r.worst->expected);
  return fmt::format("{}{}{}: {} where the reference has {}; it is off by {}", for_terminal(r.name),
                     index_text(r.worst->index), where, observed, expected,
                     error_text(r.relative_error));
}

std::string comparison_text(const DumpComparison& c, const ComparisonTextOptions& options) {
  const std::vector<ResultGroup> groups = groups_of(c.parameters);
  const std::size_t shown = options.full ? groups.size() : std::min(kGroups, groups.size());
  std::string out;
  for (std::size_t g = 0; g < shown; ++g) out += group_text(groups[g], options);
  if (shown < groups.size()) {
    std::size_t rest = 0;
    for (std::size_t g = shown; g < groups.size(); ++g) rest += groups[g].members.size();
    out += fmt::format("...   and {}, in {} other ways (--full tells)\n", parameters_text(rest),
                       groups.size() - shown);
  }
  out += right_text(c, options.width);
  if (options.full) out += every_line(c);
  out += "\n";
  if (!c.vacuous.empty())
    out += wrapped("vacuous: " + c.vacuous + " (--strict fails).", 0, options.width);
  for (const std::string& note : c.notes) out += wrapped(note, 0, options.width);
  return out + summary_text(c);
}

}  // namespace distgrad::dumps
