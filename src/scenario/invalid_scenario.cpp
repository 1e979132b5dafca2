#include "scenario/invalid_scenario.h"

#include "scenario/printable.h"

namespace distgrad {
namespace {

std::string lines_of(const std::vector<InvalidFile>& problems) {
  std::string lines;
  for (const InvalidFile& problem : problems)
    lines += (lines.empty() ? "" : "\n") + line_of(problem);
  return lines;
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
  line += " " + problem.message;
  if (!problem.caret.empty()) line += "\n" + problem.caret;
  return line;
}

}  // namespace distgrad
