// What Python's syntax does with tensors and lists when the expression runs: torch.tensor,
// subscripts, slices, sums.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace distgrad {

// torch.tensor(data): numbers, or lists and tuples of them, however deep.
at::Tensor tensor_from(const c10::IValue& data, std::optional<at::ScalarType> dtype);

// A number as torch sees it in `2 // x`: a tensor that does not decide the result's data type.
at::Tensor wrapped_number(const c10::IValue& number);

// One subscript of a tensor, as written.
struct Subscript {
  enum class Kind { kValue, kSlice, kNone, kEllipsis };
  Kind kind = Kind::kValue;
  bool given[3] = {false, false, false};  // of a slice: start, stop, step
};

// inputs: the tensor, then the values that the subscripts have, in order.
at::Tensor subscripted(const std::vector<Subscript>&, const torch::jit::Stack& inputs);

c10::IValue list_element(const c10::IValue& list, const c10::IValue& index);
// start, stop, step: none where absent.
c10::IValue list_slice(const c10::IValue& list, const c10::IValue& start, const c10::IValue& stop,
                       const c10::IValue& step);
c10::IValue list_concatenated(const c10::IValue& left, const c10::IValue& right);
c10::IValue list_repeated(const c10::IValue& list, const c10::IValue& times);

// range(stop), range(start, stop), range(start, stop, step), as a list.
c10::IValue range_list(const torch::jit::Stack& arguments);
// Lists side by side, up to the shortest, as a list of tuples.
c10::IValue zipped(const torch::jit::Stack& lists, const c10::TypePtr& element_type);

// Python's sum(), max(), min().
c10::IValue sum_of(const c10::IValue& list);
c10::IValue extreme_of(const std::vector<c10::IValue>& numbers, bool largest);

// A tensor of one element as Python's number.
c10::IValue item_of(const at::Tensor&);

}  // namespace distgrad
