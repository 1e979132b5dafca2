#include "report/source_place.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/regular_file.h"
#include "model/subject_text.h"

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

// Escapes a JSON pointer's token.
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

// --- The user's code ---

// Returns the part of the subject that is to blame, or nullopt if that is not Python.
std::optional<SubjectPart> code_to_blame(const CaseResult& r) {
  const bool blames_a_call =
      r.findings.empty() ? r.error.has_value() : !r.findings.front().collective.empty();
  if (!blames_a_call) return std::nullopt;
  const std::string blamed = r.findings.empty() ? "" : r.findings.front().collective;
  const std::vector<SubjectPart> parts = parts_of(r.which.subject);
  const auto its = std::ranges::find_if(parts, [&](const SubjectPart& part) {
    return parts.size() == 1 || (part.serves && traits(*part.serves).name == blamed);
  });
  return its != parts.end() && its->is_python() ? *its : std::optional<SubjectPart>();
}

bool is_word(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); }

// Holds the place of a `def NAME` or `class NAME`; `indent` is where it begins.
struct Definition {
  int line = 0;
  std::size_t indent = 0;
};

// Returns the first definition of `name` after `from`, within it if `inside`, else at any depth.
std::optional<Definition> definition_of(std::string_view text, std::string_view name,
                                        Definition from, bool inside) {
  int number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (++number <= from.line) continue;
    const std::size_t indent = line.find_first_not_of(" \t");
    if (indent == line.npos) continue;
    if (inside && indent <= from.indent && line[indent] != '#' && line[indent] != ')')
      return std::nullopt;
    for (const std::string_view word : {"def ", "class ", "async def "}) {
      const std::string_view rest = line.substr(indent);
      if (!rest.starts_with(word) || !rest.substr(word.size()).starts_with(name)) continue;
      const std::string_view after = rest.substr(word.size() + name.size());
      if (after.empty() || !is_word(after[0])) return Definition{number, indent};
    }
  }
  return std::nullopt;
}

std::optional<SourcePlace> place_of_code(const SubjectPart& code) {
  constexpr std::size_t kLargest = 4 << 20;
  if (!code.is_file() || code.name.empty()) return std::nullopt;
  const FileContent content = read_regular_file(code.place, kLargest);
  if (!content.problem.empty()) return std::nullopt;
  std::string_view names = code.name;
  names = names.substr(0, names.find('('));  // for a call, what is called
  std::optional<Definition> found;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find('.'));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    if (const auto next =
            definition_of(content.text, name, found.value_or(Definition{}), found.has_value()))
      found = next;
  }
  if (!found) return std::nullopt;
  if (const auto backward = definition_of(content.text, "backward", *found, true)) found = backward;
  return SourcePlace{code.place, found->line};
}

int line_in_scenario(const CaseResult& r) {
  const Scenario& scenario = *r.which.scenario;
  if (const std::string step = blamed_step(r); !step.empty())
    if (const int line = line_of_step(scenario, step); line > 0) return line;
  const int line = line_at(scenario, "/subjects/" + escaped(r.which.subject));
  return line > 0 ? line : std::max(line_at(scenario, ""), 1);
}

}  // namespace

SourcePlace place_of_case(const CaseResult& r) {
  if (const auto code = code_to_blame(r))
    if (const auto place = place_of_code(*code)) return *place;
  return {r.which.scenario->file, line_in_scenario(r)};
}

Scenario scenario_at(const std::string& place, const std::string& otherwise) {
  const std::size_t colon = std::min(place.rfind(':'), place.size());
  const std::string after = place.substr(std::min(colon + 1, place.size()));
  SourcePlace found{place.substr(0, colon), std::atoi(after.c_str())};
  if (found.line == 0)
    found = place_of_code(parts_of("python:" + place)[0]).value_or(SourcePlace{});
  Scenario made;
  made.file = found.file.empty() ? otherwise : found.file;
  made.name = made.file.substr(made.file.rfind('/') + 1);
  made.positions[""] = {found.line, 1};
  return made;
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
