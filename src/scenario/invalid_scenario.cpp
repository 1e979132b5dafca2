#include "scenario/invalid_scenario.h"

#include <algorithm>
#include <string_view>

#include "base/visible_text.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

std::string lines_of(const std::vector<InvalidFile>& problems) {
  std::string lines;
  for (const InvalidFile& problem : problems)
    lines += (lines.empty() ? "" : "\n") + line_of(problem);
  return lines;
}

// Puts bars before a stranger's text, so that it begins no line.
std::string behind_bars(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += "\n  | " + std::string(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

InvalidScenario::InvalidScenario(std::vector<InvalidFile> problems)
    : UserError(lines_of(problems)), problems_(std::move(problems)) {}

std::string line_of(const InvalidFile& problem) {
  std::string line = printable(problem.file, kLongestPath) + ":";
  if (problem.position.line > 0)
    line +=
        std::to_string(problem.position.line) + ":" + std::to_string(problem.position.column) + ":";
  if (!problem.pointer.empty()) line += " " + printable(problem.pointer, kLongestPath) + ":";
  line += " " + visible_text(problem.message, Lines::kKept);
  return line + behind_bars(visible_text(problem.caret, Lines::kKept));
}

}  // namespace distgrad
