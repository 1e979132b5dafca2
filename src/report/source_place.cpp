#include "report/source_place.h"

#include <filesystem>
#include <string_view>

namespace distgrad {
namespace {

std::string blamed_step(const CaseResult& r) {
  if (r.error && !r.error->step.empty()) return r.error->step;
  return r.findings.empty() ? std::string() : r.findings.front().step;
}

int line_at(const Scenario& scenario, const std::string& pointer) {
  const auto found = scenario.positions.find(pointer);
  return found == scenario.positions.end() ? 0 : found->second.line;
}

int line_of_step(const Scenario& scenario, const std::string& name) {
  for (std::size_t i = 0; i < scenario.steps.size(); ++i) {
    const Step& step = scenario.steps[i];
    if (step.name != name) continue;
    const std::string pointer = "/steps/" + std::to_string(i);
    const int line = line_at(scenario, pointer + "/" + name);
    return line > 0 ? line : line_at(scenario, pointer);
  }
  return 0;
}

// A JSON pointer's token.
std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

}  // namespace

int line_of_case(const CaseResult& r) {
  const Scenario& scenario = *r.which.scenario;
  if (const std::string step = blamed_step(r); !step.empty())
    if (const int line = line_of_step(scenario, step); line > 0) return line;
  const int line = line_at(scenario, "/subjects/" + escaped(r.which.subject));
  return line > 0 ? line : 1;
}

std::string path_below(const std::string& file, const std::string& root) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path whole = fs::absolute(file, ignored).lexically_normal();
  const fs::path relative = whole.lexically_relative(fs::path(root).lexically_normal());
  if (relative.empty() || *relative.begin() == "..") return whole.generic_string();
  return relative.generic_string();
}

std::string id_below(const CaseResult& r, const std::string& root) {
  const std::string& file = r.which.scenario->file;
  return path_below(file, root) + r.which.id.substr(file.size());
}

}  // namespace distgrad
