// Which inputs a collective step can bear on at all, read off the names in the expressions: what no
// path connects needs no replay.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

// The names in an expression, functions and methods among them.
std::set<std::string> names_in(const std::string& expression);

class Reach {
 public:
  explicit Reach(const Program&);

  // Indices of the gradients (inputs that require grad) from which a path leads through the step to
  // the loss; empty for a step that the loss does not depend on. Paths that a detach cuts count,
  // too: it is a bound from above.
  const std::set<std::size_t>& inputs_behind(const std::string& step) const;

 private:
  std::vector<std::string> steps_;
  std::vector<std::set<std::size_t>> behind_;
};

}  // namespace distgrad
