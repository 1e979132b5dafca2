// Says which rank program runs a case: distgrad-rank, or a Python interpreter.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/scenario.h"
#include "verify/interpreters.h"

namespace distgrad {

class RankPrograms {
 public:
  // Serves only these cases. `interpreters` may be null if none needs Python. Throws what
  // Interpreters::find throws.
  RankPrograms(std::span<const Case> cases, Interpreters* interpreters, bool simulate_only);

  const std::vector<std::vector<std::string>>& commands() const { return commands_; }
  // Has, for each command, the user's files and modules that it imports before it forks ranks.
  const std::vector<std::vector<std::string>>& imports() const { return imports_; }

  // Return indices into commands().
  int of(const Case&) const;
  int simulator_of(const Case&) const;

 private:
  std::vector<std::vector<std::string>> commands_;
  std::vector<std::vector<std::string>> imports_;
  std::map<std::string, int> by_python_;  // by the name in the case
};

}  // namespace distgrad
