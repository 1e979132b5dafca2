// Does what Python's syntax does with tensors and lists at run time: torch.tensor, subscripts,
// slices, sums.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace distgrad {

// Does torch.tensor(data) for numbers, or lists and tuples of them, however deep.
at::Tensor tensor_from(const c10::IValue& data, std::optional<at::ScalarType> dtype);

// Returns a number as torch sees it in `2 // x`: a tensor that does not decide the result's dtype.
at::Tensor wrapped_number(const c10::IValue& number);

// Describes one subscript of a tensor, as written.
struct Subscript {
  enum class Kind { kValue, kSlice, kNone, kEllipsis };
  Kind kind = Kind::kValue;
  bool given[3] = {false, false, false};  // of a slice: start, stop, step
};

// `inputs` has the tensor, then the values of the subscripts, in order.
at::Tensor subscripted(const std::vector<Subscript>&, const torch::jit::Stack& inputs);

c10::IValue list_element(const c10::IValue& list, const c10::IValue& index);
// Start, stop and step are None if absent.
c10::IValue list_slice(const c10::IValue& list, const c10::IValue& start, const c10::IValue& stop,
                       const c10::IValue& step);
c10::IValue list_concatenated(const c10::IValue& left, const c10::IValue& right);
c10::IValue list_repeated(const c10::IValue& list, const c10::IValue& times);

// Does range(stop), range(start, stop) and range(start, stop, step), as a list.
c10::IValue range_list(const torch::jit::Stack& arguments);
// Zips lists up to the shortest, as a list of tuples.
c10::IValue zipped(const torch::jit::Stack& lists, const c10::TypePtr& element_type);

// Do Python's sum(), max() and min().
c10::IValue sum_of(const c10::IValue& list);
c10::IValue extreme_of(const std::vector<c10::IValue>& numbers, bool largest);

// Returns a tensor of one element as Python's number.
c10::IValue item_of(const at::Tensor&);

}  // namespace distgrad
