// Runs a subject that is a torch operator of a user's shared library:
// "library:FILE.so:NAMESPACE::OP".
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// The library or the operator does not exist, or it has a parameter that we cannot fill. This is
// the user's error.
class UnusableOperator : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class LibraryOperator {
 public:
  // Loads the library into this process. Throws UnusableOperator.
  explicit LibraryOperator(const std::string& subject);

  // Returns why the operator's schema cannot express the call, as in "my::gather has no parameter
  // for the root"; empty if it can.
  std::string why_not_offered(const CollectiveCall& call, bool is_whole_world) const;

  // Must be called on every rank of the group. `ranks` are its members, in group order. Arguments
  // are matched by the names of the schema's parameters; docs/your-code.md lists them. If the
  // operator returns a list, the result is given the shape of the collective's kind; off the root
  // of reduce and gather it is zeros that stay attached.
  at::Tensor operator()(const Call& call, Connection& connection, const std::vector<int>& ranks,
                        const at::Tensor& operand) const;

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  std::string name_;
  c10::OperatorHandle op_;
  bool shares_operand_;  // it gets the program's own tensor, and no copy
};

}  // namespace distgrad
