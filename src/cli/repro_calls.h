// Writes calls of code other than distgrad's for a reproduction: its own interpreter reads the
// signature and writes the call.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "repro/repro.h"
#include "verify/interpreters.h"

namespace distgrad {

class ForeignCode {
 public:
  explicit ForeignCode(Interpreters& interpreters) : interpreters_(interpreters) {}

  // Asks about all at once, which starts each interpreter once.
  void ask_about(const std::vector<std::pair<const Case*, const Program*>>&);

  // Throws UserError if a call depends on what only a run knows.
  ReproCase::Foreign of(const Case&, const Program&);

 private:
  Interpreters& interpreters_;
  using Json = nlohmann::ordered_json;
  void ask_about(const std::string& interpreter, const std::map<std::string, Json>& requests);

  std::map<std::string, Json> answers_;  // by case
};

}  // namespace distgrad
