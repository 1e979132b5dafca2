// A torch operator that a user's shared library registers, as a subject:
// "library:FILE.so:NAMESPACE::OP".
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/collective.h"

namespace distgrad {

// The library or the operator is not there, or has a parameter that nothing is known for: the
// user's error.
class UnusableOperator : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class LibraryOperator {
 public:
  // Loads the library into this process. Throws UnusableOperator.
  explicit LibraryOperator(const std::string& subject);

  // Why its schema cannot say what the call asks for: "my::gather has no parameter for the root";
  // empty where it can.
  std::string why_not_offered(const CollectiveCall& call, bool is_whole_world) const;

  // On every rank of the group. `ranks` are its members, in group order. Arguments are matched by
  // the names of the schema's parameters; docs/your-code.md lists them. The result has the shape
  // that the kind asks for where the operator returns a list; off the root of reduce and gather it
  // is zeros that stay attached.
  at::Tensor operator()(const Call& call, Connection& connection, const std::vector<int>& ranks,
                        const at::Tensor& operand) const;

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  std::string name_;
  c10::OperatorHandle op_;
};

}  // namespace distgrad
