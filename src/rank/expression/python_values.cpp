#include "rank/expression/python_values.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lift_fresh.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <limits>

#include "rank/expression/evaluation_scope.h"
#include "rank/expression/instructions.h"
#include "rank/expression/numbers.h"

namespace distgrad {
namespace {

using c10::IValue;

bool is_sequence(const IValue& value) { return value.isList() || value.isTuple(); }

std::vector<IValue> elements_of(const IValue& sequence) {
  if (sequence.isTuple()) {
    const auto& elements = sequence.toTupleRef().elements();
    return std::vector<IValue>(elements.begin(), elements.end());
  }
  return sequence.toListRef().vec();
}

// Holds the numbers of nested sequences, and their shape.
struct Numbers {
  std::vector<IValue> values;
  std::vector<std::int64_t> shape;

  void collect(const IValue& data, std::size_t depth) {
    if (!is_sequence(data)) {
      if (depth != shape.size()) throw NumberError("torch.tensor: the lists' lengths differ");
      values.push_back(data);
      return;
    }
    const std::vector<IValue> elements = elements_of(data);
    const auto length = static_cast<std::int64_t>(elements.size());
    if (depth == shape.size() && values.empty()) shape.push_back(length);
    if (depth >= shape.size() || shape[depth] != length)
      throw NumberError("torch.tensor: the lists' lengths differ");
    for (const IValue& element : elements) collect(element, depth + 1);
  }
};

template <typename T, typename Convert>
void fill(const at::Tensor& tensor, const std::vector<IValue>& values, Convert convert) {
  std::transform(values.begin(), values.end(), tensor.mutable_data_ptr<T>(), convert);
}

std::int64_t checked_int(const IValue& value) {
  if (value.isBool()) return value.toBool();
  if (!value.isInt()) throw NumberError("a float stands where an integer must");
  return value.toInt();
}

std::int64_t wrapped_index(std::int64_t index, std::int64_t size) {
  if (index < -size || index >= size)
    throw NumberError("index " + std::to_string(index) + " is out of range for a list of " +
                      std::to_string(size));
  return index < 0 ? index + size : index;
}

void check_length(std::int64_t length) {
  if (length > kMaxIterations)
    throw NumberError("a list of " + std::to_string(length) +
                      " elements is too long for an expression; at most " +
                      std::to_string(kMaxIterations));
}

at::indexing::TensorIndex tensor_index(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isBool()) return value.toBool();
  if (is_sequence(value)) {
    at::Tensor index = tensor_from(value, std::nullopt);
    return index.numel() == 0 ? index.to(at::kLong) : index;
  }
  return checked_int(value);
}

}  // namespace

at::Tensor tensor_from(const IValue& data, std::optional<at::ScalarType> dtype) {
  Numbers numbers;
  numbers.collect(data, 0);
  const auto any = [&](auto is) {
    return std::any_of(numbers.values.begin(), numbers.values.end(), is);
  };
  at::ScalarType inferred = at::kBool;
  if (any([](const IValue& v) { return v.isInt(); })) inferred = at::kLong;
  if (numbers.values.empty() || any([](const IValue& v) { return v.isDouble(); }))
    inferred = at::kDouble;
  at::Tensor tensor = at::empty(numbers.shape, at::TensorOptions().dtype(inferred));
  if (inferred == at::kBool) {
    fill<bool>(tensor, numbers.values, [](const IValue& v) { return v.toBool(); });
  } else if (inferred == at::kLong) {
    fill<std::int64_t>(tensor, numbers.values, [](const IValue& v) { return checked_int(v); });
  } else {
    fill<double>(tensor, numbers.values,
                 [](const IValue& v) { return to_python_float(v).toDouble(); });
  }
  if (inferred == at::kDouble && !dtype) dtype = c10::get_default_dtype_as_scalartype();
  if (dtype) tensor = tensor.to(*dtype);
  if (!constructor_device().is_cpu()) tensor = tensor.to(constructor_device());
  // lift_fresh tells the dispatcher of a new constant, as Python's torch.tensor does.
  return at::lift_fresh(tensor);
}

at::Tensor wrapped_number(const IValue& number) {
  const c10::Scalar scalar = number.toScalar();
  const at::ScalarType type = scalar.isFloatingPoint() ? at::kDouble
                              : scalar.isBoolean()     ? at::kBool
                                                       : at::kLong;
  at::Tensor tensor = at::scalar_tensor(scalar, at::TensorOptions().dtype(type));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

at::Tensor subscripted(const std::vector<Subscript>& subscripts, const torch::jit::Stack& inputs) {
  std::vector<at::indexing::TensorIndex> indices;
  std::size_t next = 1;
  for (const Subscript& subscript : subscripts) {
    switch (subscript.kind) {
      case Subscript::Kind::kNone:
        indices.emplace_back(at::indexing::None);
        break;
      case Subscript::Kind::kEllipsis:
        indices.emplace_back(at::indexing::Ellipsis);
        break;
      case Subscript::Kind::kValue:
        indices.push_back(tensor_index(inputs[next++]));
        break;
      case Subscript::Kind::kSlice: {
        std::optional<c10::SymInt> bounds[3];
        for (int i = 0; i < 3; ++i)
          if (subscript.given[i]) bounds[i] = c10::SymInt(checked_int(inputs[next++]));
        indices.emplace_back(at::indexing::Slice(bounds[0], bounds[1], bounds[2]));
        break;
      }
    }
  }
  return inputs[0].toTensor().index(indices);
}

IValue list_element(const IValue& list, const IValue& index) {
  const auto elements = list.toListRef();
  return elements[wrapped_index(checked_int(index), static_cast<std::int64_t>(elements.size()))];
}

IValue list_slice(const IValue& list, const IValue& start, const IValue& stop, const IValue& step) {
  const auto elements = list.toList();
  const auto size = static_cast<std::int64_t>(elements.size());
  const std::int64_t stride = step.isNone() ? 1 : checked_int(step);
  if (stride == 0) throw NumberError("slice step cannot be zero");
  // This is Python's PySlice_AdjustIndices.
  const auto bound = [&](const IValue& given, std::int64_t absent) {
    if (given.isNone()) return absent;
    std::int64_t at = checked_int(given);
    if (at < 0) at = std::max<std::int64_t>(at + size, stride < 0 ? -1 : 0);
    return std::min(at, stride < 0 ? size - 1 : size);
  };
  const std::int64_t first = bound(start, stride < 0 ? size - 1 : 0);
  const std::int64_t last = bound(stop, stride < 0 ? -1 : size);
  c10::impl::GenericList result(elements.elementType());
  for (std::int64_t i = first; stride < 0 ? i > last : i < last;) {
    result.push_back(elements.get(i));
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  return result;
}

IValue list_concatenated(const IValue& left, const IValue& right) {
  c10::impl::GenericList result = left.toList().copy();
  for (const IValue& element : right.toListRef()) result.push_back(element);
  check_length(static_cast<std::int64_t>(result.size()));
  return result;
}

IValue list_repeated(const IValue& list, const IValue& times) {
  const auto elements = list.toListRef();
  const std::int64_t count = std::max<std::int64_t>(checked_int(times), 0);
  const auto size = static_cast<std::int64_t>(elements.size());
  c10::impl::GenericList result(list.toList().elementType());
  if (size == 0) return result;
  if (count > kMaxIterations) check_length(count);
  check_length(count * size);
  for (std::int64_t i = 0; i < count; ++i)
    for (const IValue& element : elements) result.push_back(element);
  return result;
}

IValue range_list(const torch::jit::Stack& arguments) {
  const std::int64_t start = arguments.size() > 1 ? checked_int(arguments[0]) : 0;
  const std::int64_t stop = checked_int(arguments[arguments.size() > 1 ? 1 : 0]);
  const std::int64_t step = arguments.size() > 2 ? checked_int(arguments[2]) : 1;
  if (step == 0) throw NumberError("range() arg 3 must not be zero");
  c10::List<std::int64_t> result;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    result.push_back(i);
    if (static_cast<std::int64_t>(result.size()) > kMaxIterations)
      throw NumberError("a range of more than " + std::to_string(kMaxIterations) + " elements");
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return result;
}

IValue zipped(const torch::jit::Stack& lists, const c10::TypePtr& element_type) {
  std::size_t length = std::numeric_limits<std::size_t>::max();
  for (const IValue& list : lists) length = std::min(length, list.toListRef().size());
  c10::impl::GenericList result(element_type);
  for (std::size_t i = 0; i < length; ++i) {
    std::vector<IValue> elements;
    for (const IValue& list : lists) elements.push_back(list.toListRef()[i]);
    result.push_back(c10::ivalue::Tuple::create(std::move(elements)));
  }
  return result;
}

IValue sum_of(const IValue& list) {
  IValue total = std::int64_t{0};
  for (const IValue& element : list.toListRef()) {
    if (!element.isTensor()) {
      total = number_binary("+", total, element);
    } else if (!total.isTensor()) {
      total = at::add(element.toTensor(), total.toScalar());  // Python begins with 0 + first
    } else {
      total = at::add(total.toTensor(), element.toTensor());
    }
  }
  return total;
}

IValue extreme_of(const std::vector<IValue>& numbers, bool largest) {
  if (numbers.empty()) throw NumberError("max() or min() of nothing");
  IValue result = numbers[0];
  for (const IValue& number : numbers)
    if (number_compare(largest ? ">" : "<", number, result)) result = number;
  return result;
}

IValue item_of(const at::Tensor& tensor) {
  const c10::Scalar scalar = tensor.item();
  if (scalar.isComplex())
    throw NumberError("complex numbers are not part of the scenario language");
  return scalar;
}

}  // namespace distgrad
