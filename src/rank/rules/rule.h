// Backward rules are pure joint functions of one collective call. They map the cotangents, operands
// and outputs of all ranks of the group to all operands' cotangents. A rule serves on real ranks,
// where one adapter gathers, evaluates it and keeps its own row, and in simulation, where it is one
// graph node.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// Holds values by group rank. Cotangents are never undefined; they are zeros if no loss depends on
// the output.
struct JointValues {
  std::vector<at::Tensor> operands;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> cotangents;
};

// Undefined entries mean no gradient.
using RuleFunction = std::vector<at::Tensor> (*)(const Call&, const JointValues&);

struct Rule {
  std::string_view name;  // as in model/libraries.h
  bool (*applies)(const CollectiveCall&);
  RuleFunction evaluate;
};

// Returns nullptr if there is no such rule. Every rule of backward_rules() is there.
const Rule* rule_named(std::string_view name);

// A rule throws this in backward if its library raises there.
class RaisesInBackward : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace distgrad
