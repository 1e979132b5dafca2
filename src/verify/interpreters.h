// The Python interpreters that run subjects in Python.
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
  // As the user named it; "" is the default: PATH's python3 where that has torch, else that of the
  // environment that pip installed this executable into, else the one of this build. Each is asked
  // once. Throws UserError where it does not run or has no torch.
  const Interpreter& find(const std::string& asked);

 private:
  std::map<std::string, Interpreter> found_;
};

// The command that makes an interpreter a rank program. Throws SystemError where distgrad's Python
// files are not found. `preload`: torch's modules, "a,b", that are imported before ranks are
// forked; they must start no thread. "": none. `imports`: files and modules of the user's that are
// imported then, too, where that is as good as an import in each rank.
std::vector<std::string> python_rank_command(const std::string& interpreter,
                                             const std::string& preload = {},
                                             const std::vector<std::string>& imports = {});

// The same program, to be asked which functions a subject has
// (src/python/distgrad/ranks/finding.py).
std::vector<std::string> python_functions_command(const std::string& interpreter,
                                                  const std::string& subject,
                                                  const std::string& kinds);

}  // namespace distgrad
