#include "audit/subject_functions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/captured_child.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/lines.h"

namespace distgrad {
namespace {

// Equals the mark in finding.py.
constexpr std::string_view kMark =
    "\x1e"
    "distgrad functions ";
constexpr int kImportS = 900;  // builds of extensions take minutes

std::string kinds_text(const std::vector<CollectiveKind>& kinds) {
  std::vector<std::string_view> names;
  for (const CollectiveKind kind : kinds) names.push_back(traits(kind).name);
  return fmt::format("{}", fmt::join(names, ","));
}

std::string why_no_answer(const std::string& part, const CapturedChild& child) {
  if (child.timed_out) return fmt::format("{}: its import takes more than {} s", part, kImportS);
  const std::string how = child.ok() ? "ended" : exit_description(child.wait_status);
  return fmt::format("{}: the process that imports it {}: {}", part, how, last_line(child.text));
}

nlohmann::json ask(const SubjectPart& part, const std::vector<CollectiveKind>& kinds,
                   const Interpreter& python, const WhileImporting& while_importing) {
  ChildCommand command;
  command.arguments =
      python_functions_command(python.path, "python:" + part.called(), kinds_text(kinds));
  command.environment = {{"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}};
  const CapturedChild child = run_captured(command, kImportS, [&](double seconds) {
    while_importing(seconds);
    return interrupted_by() == 0;
  });
  const std::size_t mark = child.text.rfind(kMark);
  if (mark == std::string::npos) {
    if (interrupted_by()) return nlohmann::json::object();
    throw UserError(why_no_answer(part.text, child));
  }
  return nlohmann::json::parse(
      first_line(std::string_view(child.text).substr(mark + kMark.size())));
}

// Turns "python:losses.py@checkpoint" and "GatherLayer" into
// "python:losses.py:GatherLayer@checkpoint".
std::string of_name(const SubjectPart& part, const std::string& name) {
  if (names_a_function(part)) return part.text;
  return fmt::format("python:{}:{}{}", part.place, name, part.mode ? "@" + *part.mode : "");
}

}  // namespace

bool names_a_function(const SubjectPart& part) {
  return !part.is_python() || !part.name.empty() || part.is_reference() || part.is_in_place();
}

SubjectFunctions functions_of(const SubjectPart& part, const std::vector<CollectiveKind>& kinds,
                              const Interpreter& python, const WhileImporting& while_importing) {
  const nlohmann::json answer = ask(part, kinds, python, while_importing);
  SubjectFunctions found;
  if (answer.empty()) return found;  // interrupted
  if (answer.contains("error"))
    throw UserError(fmt::format("{}: {}", part.text, answer["error"].get<std::string>()));
  found.is_built_in = answer["built_in"];
  for (const nlohmann::json& f : answer["functions"]) {
    SubjectFunction function;
    function.kind = collective_named(f["kind"].get<std::string>()).value();
    function.subject = of_name(part, f["name"]);
    function.name = read_part(function.subject).called();
    function.problem = f["problem"];
    found.functions.push_back(std::move(function));
  }
  for (const nlohmann::json& name : answer["unnamed"])
    found.unnamed.push_back(read_part(of_name(part, name)).called());
  return found;
}

}  // namespace distgrad
