#include "rank/expression/error_text.h"

#include <c10/util/Exception.h>

#include <sstream>

namespace distgrad {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

// Joins the lines up to the first empty one.
std::string first_paragraph(const std::string& text) {
  std::istringstream lines(trimmed(text));
  std::string result, line;
  while (std::getline(lines, line) && !trimmed(line).empty()) {
    if (line.rfind("Exception raised from", 0) == 0) break;
    result += (result.empty() ? "" : " ") + trimmed(line);
  }
  return result;
}

}  // namespace

std::string error_text(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error))
    return first_paragraph(torch_error->what_without_backtrace());
  return first_paragraph(error.what());
}

// A report for one schema has the schema, a line with the reason, and the source with a highlight.
std::string mismatch_text(const std::exception& error) {
  std::istringstream lines(error.what());
  for (std::string line; std::getline(lines, line);) {
    line = trimmed(line);
    for (const char* beginning : {"Expected ", "Argument ", "Keyword argument ", "Could not match"})
      if (line.rfind(beginning, 0) == 0)
        return line.back() == '.' ? line.substr(0, line.size() - 1) : line;
  }
  return "";
}

}  // namespace distgrad
