// Backward rules as pure joint functions of one collective call: the cotangents, operands and
// outputs of all ranks of the group go in, the operands' cotangents of all ranks come out. A rule
// serves twice: on real ranks (one adapter gathers, evaluates it and keeps its own row) and in
// simulation (one graph node), where it is a hypothesis to replay.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// By group rank. Cotangents are never undefined (zeros where a loss did not depend on the output).
struct JointValues {
  std::vector<at::Tensor> operands;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> cotangents;
};

// Undefined entries: no gradient.
using RuleFunction = std::vector<at::Tensor> (*)(const Call&, const JointValues&);

struct Rule {
  std::string_view name;  // as in model/libraries.h
  bool (*applies)(const CollectiveCall&);
  RuleFunction evaluate;
};

// nullptr for a name that is no rule. Every rule of backward_rules() has one.
const Rule* rule_named(std::string_view name);

// A rule that raises in backward, as the library it stands for does.
class RaisesInBackward : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace distgrad
