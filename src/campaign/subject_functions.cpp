#include "campaign/subject_functions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/captured_child.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/lines.h"
#include "model/subject_text.h"

namespace distgrad {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMark =
    "\x1e"
    "distgrad functions ";  // as finding.py has it
constexpr std::string_view kPython = "python:", kLibrary = "library:";
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

Json ask(const std::string& part, const std::vector<CollectiveKind>& kinds,
         const Interpreter& python, const WhileImporting& while_importing) {
  ChildCommand command;
  command.arguments =
      python_functions_command(python.path, std::string(split_mode(part).first), kinds_text(kinds));
  command.environment = {{"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}};
  const CapturedChild child = run_captured(command, kImportS, [&](double seconds) {
    while_importing(seconds);
    return interrupted_by() == 0;
  });
  const std::size_t mark = child.text.rfind(kMark);
  if (mark == std::string::npos) {
    if (interrupted_by()) return Json::object();
    throw UserError(why_no_answer(part, child));
  }
  return Json::parse(first_line(std::string_view(child.text).substr(mark + kMark.size())));
}

// "python:losses.py@checkpoint" and "GatherLayer": "python:losses.py:GatherLayer@checkpoint".
std::string of_name(const std::string& part, const std::string& name) {
  if (names_a_function(part)) return part;
  const auto [place, mode] = split_mode(part);
  return fmt::format("{}:{}{}", place, name, mode ? fmt::format("@{}", *mode) : "");
}

}  // namespace

bool names_a_function(const std::string& part) {
  const std::string_view place = split_mode(part).first;
  if (!place.starts_with(kPython)) return true;
  const std::string_view rest = place.substr(kPython.size());
  if (rest == "reference" || rest == "in_place" || rest.find(".py:") != rest.npos) return true;
  return !rest.ends_with(".py") && rest.find(':') != rest.npos;
}

std::string function_name(const std::string& part) {
  std::string_view name =
      part.starts_with(kPython) ? split_mode(part).first : std::string_view(part);
  for (const std::string_view prefix : {kPython, kLibrary})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return std::string(name);
}

SubjectFunctions functions_of(const std::string& part, const std::vector<CollectiveKind>& kinds,
                              const Interpreter& python, const WhileImporting& while_importing) {
  const Json answer = ask(part, kinds, python, while_importing);
  SubjectFunctions found;
  if (answer.empty()) return found;  // interrupted
  if (answer.contains("error"))
    throw UserError(fmt::format("{}: {}", part, answer["error"].get<std::string>()));
  found.is_built_in = answer["built_in"];
  for (const Json& f : answer["functions"]) {
    SubjectFunction function;
    function.kind = collective_named(f["kind"].get<std::string>()).value();
    function.subject = of_name(part, f["name"]);
    function.name = function_name(function.subject);
    function.problem = f["problem"];
    found.functions.push_back(std::move(function));
  }
  for (const Json& name : answer["unnamed"])
    found.unnamed.push_back(function_name(of_name(part, name)));
  return found;
}

}  // namespace distgrad
