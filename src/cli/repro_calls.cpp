#include "cli/repro_calls.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/captured_child.h"
#include "base/error.h"
#include "model/subject_text.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostAtOnce = 65'536;  // bytes; a program's argument may have twice as many
constexpr int kScriptTimeout = 120;  // seconds; importing torch and the user's modules takes long

// distgrad's folder comes last, so that it hides none of the user's modules.
constexpr const char* kQuestion =
    "import sys\n"
    "sys.path.append(sys.argv[1])\n"
    "from distgrad.ranks.call_source import main\n"
    "main(sys.argv[2])\n";

Json call_json(const Step& step, const Program& program) {
  const CollectiveCall& call = *step.collective();
  const Group* group = call.group.empty() ? nullptr : program.group_named(call.group);
  Json out = {{"step", step.name},      {"kind", traits(call.kind).name},
              {"op", name_of(call.op)}, {"factor", call.factor},
              {"root", call.root},      {"dim", nullptr},
              {"splits", nullptr},      {"pairs", call.pairs},
              {"size", nullptr}};
  if (call.dim) out["dim"] = *call.dim;
  if (!call.splits.empty()) out["splits"] = call.splits;
  if (group) out["size"] = group->partition[0].size();
  return out;
}

Json ask(const std::string& interpreter, const Json& request) {
  const std::filesystem::path main = python_rank_command(interpreter).at(1);
  ChildCommand command;
  command.arguments = {interpreter, "-c", kQuestion,
                       main.parent_path().parent_path().parent_path().string(), request.dump()};
  const CapturedChild child = run_captured(command, kScriptTimeout);
  std::string text = child.text;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const Json answer = Json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
  if (child.ok() && answer.is_array()) return answer;
  throw UserError("repro: " + interpreter + " could not say how the subject is called:\n" + text);
}

Json request_of(const Case& which, const Program& program) {
  Json request = {{"subject", which.subject},
                  {"calls", Json::array()},
                  {"functions", Json::array()},
                  {"names", script_names()}};
  const auto takes = [&](const auto& things) {
    for (const auto& thing : things) request["names"].push_back(thing.name);
  };
  if (has_code(program.steps)) {  // they may call it
    takes(program.inputs);
    takes(program.steps);
  }
  for (const Step& step : program.steps) {
    if (const CodeCall* code = step.code())
      request["functions"].push_back(
          {{"step", step.name}, {"code", code->code}, {"simulate", code->simulate}});
    if (!step.collective()) continue;
    request["calls"].push_back(call_json(step, program));
    request["calls"].back()["subject"] = subject_for(which.subject, step.collective()->kind);
  }
  return request;
}

bool has_foreign_code(const Case& which, const Program& program) {
  return is_foreign_code(which.subject) || is_python_subject(which.subject) ||
         has_code(program.steps);
}

ReproCase::Foreign foreign_of(const Json& answer) {
  ReproCase::Foreign foreign;
  if (answer.contains("error")) throw UserError("repro: " + answer["error"].get<std::string>());
  for (const auto& [step, call] : answer["calls"].items())
    foreign.calls[step] = {call.value("builtin", ""), call.value("text", ""), call["around"]};
  for (const auto& [step, function] : answer["functions"].items())
    foreign.functions[step] = {function["function"], function["simulate"]};
  foreign.imports = answer["imports"];
  foreign.setups = answer["setups"];
  foreign.mode = answer["mode"];
  return foreign;
}

}  // namespace

void ForeignCode::ask_about(const std::vector<std::pair<const Case*, const Program*>>& cases) {
  std::map<std::string, std::map<std::string, Json>> by_interpreter;  // and by case
  std::map<std::string, std::size_t> sizes;
  for (const auto& [which, program] : cases) {
    if (!has_foreign_code(*which, *program)) continue;
    const std::string interpreter = interpreters_.find(which->python).path;
    Json request = request_of(*which, *program);
    sizes[interpreter] += request.dump().size();
    if (sizes[interpreter] > kMostAtOnce) {
      ask_about(interpreter, std::exchange(by_interpreter[interpreter], {}));
      sizes[interpreter] = 0;
    }
    by_interpreter[interpreter][which->id] = std::move(request);
  }
  for (const auto& [interpreter, requests] : by_interpreter) ask_about(interpreter, requests);
}

void ForeignCode::ask_about(const std::string& interpreter,
                            const std::map<std::string, Json>& requests) {
  Json all = Json::array();
  for (const auto& [id, request] : requests) all.push_back(request);
  try {
    const Json answers = ask(interpreter, all);
    for (std::size_t i = 0; const auto& [id, request] : requests) answers_[id] = answers.at(i++);
  } catch (const UserError&) {  // of() asks about each by itself, and so finds the case at fault
  }
}

ReproCase::Foreign ForeignCode::of(const Case& which, const Program& program) {
  if (!has_foreign_code(which, program)) return {};
  const auto known = answers_.find(which.id);
  if (known != answers_.end()) return foreign_of(known->second);
  return foreign_of(
      ask(interpreters_.find(which.python).path, Json::array({request_of(which, program)})).at(0));
}

}  // namespace distgrad
