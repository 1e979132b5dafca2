#include "expression/error_text.h"

#include <c10/util/Exception.h>

#include <sstream>
#include <vector>

namespace distgrad {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

// Lines up to the first empty one, joined.
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

// A report for one schema reads: the schema, the reason in a line or more, "The original call is:" or "at:", the source.
std::string mismatch_text(const std::exception& error) {
  std::istringstream lines(error.what());
  std::string line, result;
  while (std::getline(lines, line)) {
    line = trimmed(line);
    if (line.find("<--- HERE") != std::string::npos || line.rfind("The original call is", 0) == 0) break;
    if (line.rfind("Expected ", 0) == 0 || line.rfind("Unknown keyword", 0) == 0 ||
        line.rfind("Argument ", 0) == 0 || line.rfind("argument ", 0) == 0 ||
        line.rfind("Could not match", 0) == 0 || line.rfind("keyword argument", 0) == 0)
      return line;
  }
  return result;
}

}  // namespace distgrad
