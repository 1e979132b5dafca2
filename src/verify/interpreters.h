// Finds the Python interpreters that run subjects in Python.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace distgrad {

struct Interpreter {
  std::string path;
  std::string torch;  // its version, found without importing it
};

class Interpreters {
 public:
  // Finds the interpreter that the user named. "" is the default: PATH's python3 if that has torch,
  // else that of the environment that pip installed this executable into, else the one of this
  // build. Each is asked once. Throws UserError if it does not run or has no torch.
  const Interpreter& find(const std::string& asked);
  // Finds the same for ranks, which load libdistgrad_rank.so. Throws UserError, too, if its torch
  // is not the one that distgrad was built with.
  const Interpreter& find_for_ranks(const std::string& asked);

 private:
  std::map<std::string, Interpreter> found_;
};

// Returns the command that makes an interpreter a rank program. `preload` names torch's modules,
// "a,b", to import before ranks are forked; they must start no thread. `imports` has the user's
// files and modules to import then, too, if that is as good as an import in each rank. Throws
// SystemError if distgrad's Python files are not found.
std::vector<std::string> python_rank_command(const std::string& interpreter,
                                             const std::string& preload = {},
                                             const std::vector<std::string>& imports = {});

// Returns the command that asks the same program which functions a subject has
// (src/python/distgrad/ranks/finding.py).
std::vector<std::string> python_functions_command(const std::string& interpreter,
                                                  const std::string& subject,
                                                  const std::string& kinds);

}  // namespace distgrad
