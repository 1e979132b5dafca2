// Holds one intercepted operator: its arguments as they were before it ran, its results, and what a
// rule needs to write the results' error bounds.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tolerance/shadow.h"

namespace distgrad::tolerance {

class OpCall;
using Rule = void (*)(OpCall&);

// Holds what does not change from call to call.
struct OpTraits {
  explicit OpTraits(const c10::OperatorHandle& op);

  std::string name;  // without namespace, overload and the underscore of in-place operators: "add"
  Rule rule = nullptr;
  const struct Formula* formula = nullptr;
  bool is_view = false;  // the results share the arguments' memory and so their cells
  bool known = true;
  std::vector<std::string> arguments;
  std::vector<int> written;  // arguments that the operator changes (in-place, out=)
};

// Holds the LU factors of a matrix, and the error of the matrix that they stand for.
struct Factors {
  at::Tensor lu;
  at::Tensor error;
};

// Holds what one ErrorAnalysis has gathered.
struct Context {
  DType dtype = DType::kFloat64;
  Shadows shadows;
  Arena arena;
  std::string place;
  std::vector<std::string> undecided;
  std::vector<std::string> unknown;
  std::vector<Factors> factors;
  double backward_scale = 1;  // the run's backward may carry values this many times larger
};

// Reports that a rule met an overload that it was not written for.
class NoRule : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class OpCall {
 public:
  OpCall(Context& context, const c10::OperatorHandle& op, const OpTraits& traits,
         c10::ArrayRef<c10::IValue> arguments);
  void set_results(c10::ArrayRef<c10::IValue> results);

  const OpTraits& traits() const { return traits_; }
  const c10::OperatorHandle& op() const { return op_; }
  Context& context() { return context_; }
  Arena& arena() { return context_.arena; }

  // These find arguments by the schema's names. A missing name or None gives index -1, nullptr,
  // nullopt or the default.
  int index_of(std::string_view name) const;
  const c10::IValue* argument(std::string_view name) const;  // nullptr also for None
  c10::ArrayRef<c10::IValue> arguments() const { return arguments_; }
  // Its values may have been overwritten; see view().
  const at::Tensor* tensor(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  bool boolean(std::string_view name, bool otherwise) const;
  std::vector<std::int64_t> integers(std::string_view name) const;  // an int or a list of ints

  // Return a tensor's or number's values and cells as they were before the operator ran.
  std::optional<BoundedView> view(std::string_view name) const;
  BoundedView view(int index) const;
  // Throws NoRule if this overload has no such argument.
  BoundedView required_view(std::string_view name) const;
  // Reads all of a view broadcast to sizes. With `numbers_in_inner` Python numbers have the type
  // that the kernels compute in, else they are rounded to the stored type.
  Buffer read(const BoundedView& view, c10::IntArrayRef sizes, bool numbers_in_inner = false);
  Buffer read(const BoundedView& view) { return read(view, view.sizes); }
  Buffer read(const at::Tensor& tensor, c10::IntArrayRef sizes) {
    return read(context_.shadows.view_of(tensor), sizes);
  }
  Buffer read(const at::Tensor& tensor) { return read(tensor, tensor.sizes()); }

  const std::vector<at::Tensor>& results() const { return results_; }
  const at::Tensor& result(std::size_t i = 0) const { return results_[i]; }
  const Arithmetic& arithmetic() const {
    return arithmetic_;
  }  // of the first floating-point result

  void write(const at::Tensor& result, const Cell* cells) { context_.shadows.write(result, cells); }
  // Writes the error of each element; zero means exact.
  void write_errors(const at::Tensor& result, const Buffer& out, const double* errors);

  bool in_backward() const { return in_backward_; }
  // Sets the element that a rule is at, for messages.
  void at_element(std::int64_t i, c10::IntArrayRef sizes) { element_ = i, element_sizes_ = sizes; }
  // Reports that a branch compares a and b, if they are inexact and within their errors of each
  // other. Backward's own comparisons are left out, since they repeat a branch of forward with
  // correlated values.
  void branch(BoundedValue a, BoundedValue b);
  void finish();  // reports what branch() found

 private:
  friend class BranchScope;
  Context& context_;
  const c10::OperatorHandle& op_;
  const OpTraits& traits_;
  c10::SmallVector<c10::IValue, 8> arguments_;
  std::vector<std::pair<int, BoundedView>> before_;  // arguments that the operator overwrites
  std::vector<at::Tensor> results_;
  Arithmetic arithmetic_{};
  bool in_backward_ = false;
  std::int64_t element_ = 0;
  c10::IntArrayRef element_sizes_;
  std::string branch_text_;
  int branches_ = 0;
};

// Returns the call that formulas on BoundedValues belong to.
OpCall& current_call();
class CurrentCall {
 public:
  explicit CurrentCall(OpCall& call);
  ~CurrentCall();
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;
};
// Reports, from a formula, that x is compared with y.
inline void branch(BoundedValue x, BoundedValue y) { current_call().branch(x, y); }
inline void branch(BoundedValue x, double y) { current_call().branch(x, {y, 0}); }

bool is_real_floating(c10::ScalarType type);
bool is_real_floating(const at::Tensor& tensor);

// Writes a number for messages: the shortest text that reads back as the same double.
std::string shortest(double value);

}  // namespace distgrad::tolerance
