#include "verify/interpreters.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/captured_child.h"
#include "base/error.h"
#include "base/lines.h"
#include "base/version.h"
#include "pool/installation.h"

namespace distgrad {
namespace {

constexpr int kTimeout = 20;  // seconds

// Prints torch's version, or nothing without torch. It asks the metadata, as importing torch takes
// seconds.
constexpr const char* kQuestion =
    "import importlib.util as u, sys\n"
    "if u.find_spec('torch') is not None:\n"
    "  try:\n"
    "    from importlib.metadata import version\n"
    "    print(version('torch'))\n"
    "  except Exception:\n"
    "    import torch\n"
    "    print(torch.__version__)\n"
    "if sys.version_info < (3, 9): sys.exit('Python %d.%d is too old; 3.9 is needed' % "
    "sys.version_info[:2])\n";

std::string trimmed(std::string text) {
  const std::size_t last = text.find_last_not_of(" \n\r\t");
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

// Returns the file of this name on PATH. A text that is a path is returned itself, if it exists.
std::string on_path(const std::string& name) {
  std::error_code ignored;
  if (name.find('/') != std::string::npos)
    return std::filesystem::exists(name, ignored) ? name : "";
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path ? path : ""; !rest.empty();) {
    const std::size_t colon = rest.find(':');
    const std::string file = std::string(rest.substr(0, colon)) + "/" + name;
    const auto status = std::filesystem::status(file, ignored);
    if (std::filesystem::is_regular_file(status) &&
        (status.permissions() & std::filesystem::perms::owner_exec) != std::filesystem::perms::none)
      return file;
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return "";
}

struct Answer {
  std::string torch;
  std::string trouble;
};

Answer ask(const std::string& path) {
  ChildCommand command;
  command.arguments = {path, "-c", kQuestion};
  const CapturedChild child = run_captured(command, kTimeout);
  const std::string last = last_line(trimmed(child.text));
  if (!child.ok()) return {"", fmt::format("{} does not run: {}", path, last)};
  if (last.empty()) return {"", path + " has no torch"};
  return {last, ""};
}

std::optional<Interpreter> usable(const std::string& path) {
  if (path.empty()) return std::nullopt;
  const Answer answer = ask(path);
  if (!answer.trouble.empty()) return std::nullopt;
  return Interpreter{path, answer.torch};
}

Interpreter default_interpreter() {
  if (auto found = usable(on_path("python3"))) return *found;
  if (auto found = usable(environment_python_of(executable_folder()).string())) return *found;
  if (auto found = usable(std::string(kBuildPython))) return *found;
  throw UserError("no Python with torch for the subjects in Python: give one with --python PATH");
}

Interpreter named(const std::string& asked) {
  const std::string path = on_path(asked);
  if (path.empty()) throw UserError(fmt::format("--python: there is no {}", asked));
  const Answer answer = ask(path);
  if (!answer.trouble.empty()) throw UserError("--python: " + answer.trouble);
  return {path, answer.torch};
}

std::string rank_program() {
  const std::filesystem::path program = python_ranks_of(executable_folder());
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(program, error);
  if (error)
    throw SystemError("the ranks' Python files are missing: " +
                      program.lexically_normal().string());
  return file.string();
}

}  // namespace

const Interpreter& Interpreters::find(const std::string& asked) {
  const auto known = found_.find(asked);
  if (known != found_.end()) return known->second;
  return found_.emplace(asked, asked.empty() ? default_interpreter() : named(asked)).first->second;
}

const Interpreter& Interpreters::find_for_ranks(const std::string& asked) {
  const Interpreter& found = find(asked);
  const std::string_view built = release_of(kTorchVersion);
  if (release_of(found.torch) != built)
    throw UserError(fmt::format(
        "{} has torch {}, and distgrad was built with torch {}: build it with that Python, or name "
        "one with torch {} with --python PATH",
        found.path, found.torch, built, built));
  return found;
}

std::vector<std::string> python_rank_command(const std::string& interpreter,
                                             const std::string& preload,
                                             const std::vector<std::string>& imports) {
  std::vector<std::string> command = {interpreter, rank_program()};
  if (!preload.empty()) command.insert(command.end(), {"--preload", preload});
  for (const std::string& place : imports) command.insert(command.end(), {"--import", place});
  return command;
}

std::vector<std::string> python_functions_command(const std::string& interpreter,
                                                  const std::string& subject,
                                                  const std::string& kinds) {
  return {interpreter, rank_program(), "--functions", subject, kinds};
}

}  // namespace distgrad
