// Says everything that is wrong with a scenario file and can be found independently.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "model/report.h"

namespace distgrad {

class InvalidScenario : public UserError {
 public:
  explicit InvalidScenario(std::vector<InvalidFile> problems);
  const std::vector<InvalidFile>& problems() const { return problems_; }

 private:
  std::vector<InvalidFile> problems_;
};

// Returns "file:line:column: pointer: message".
std::string line_of(const InvalidFile&);

}  // namespace distgrad
