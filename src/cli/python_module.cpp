#include "cli/python_module.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "cli/watched_program.h"
#include "pool/installation.h"
#include "verify/interpreters.h"

namespace distgrad {
namespace {

// Makes Python find the module before anything else that the user has there.
void put_on_python_path(const std::filesystem::path& folder) {
  const char* before = std::getenv("PYTHONPATH");
  const std::string path = before && *before ? folder.string() + ":" + before : folder.string();
  setenv("PYTHONPATH", path.c_str(), 1);
}

[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  throw SystemError(fmt::format("{} does not run: {}", command[0], std::strerror(errno)));
}

}  // namespace

ExitCode run_python_module(const std::string& python, const std::string& module,
                           const Arguments& arguments, bool joins) {
  Interpreters interpreters;
  std::vector<std::string> command = {interpreters.find(python).path, "-m", module};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::error_code ignored;
  const auto program =
      std::filesystem::weakly_canonical(python_ranks_of(executable_folder()), ignored);
  put_on_python_path(program.parent_path().parent_path().parent_path());
  if (joins) become(command);
  return run_watched(command);
}

}  // namespace distgrad
