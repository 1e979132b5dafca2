// Which rank program runs a case: distgrad-rank, or a Python interpreter.
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
  // For these cases and no others. `interpreters` may be null where none needs Python; throws what
  // it throws.
  RankPrograms(std::span<const Case> cases, Interpreters* interpreters, bool simulate_only);

  const std::vector<std::vector<std::string>>& commands() const { return commands_; }
  // For each command the user's files and modules that it imports before it forks ranks.
  const std::vector<std::vector<std::string>>& imports() const { return imports_; }

  // Places in commands().
  int of(const Case&) const;
  int simulator_of(const Case&) const;

 private:
  std::vector<std::vector<std::string>> commands_;
  std::vector<std::vector<std::string>> imports_;
  std::map<std::string, int> by_python_;  // as the case names it
};

}  // namespace distgrad
