// The operators distgrad_rank::*, by which the Python of a rank or simulator has this library run
// the program of its case. The library calls back what Python registers as distgrad_python::*, the
// user's functions behind it. Operators that run tensor code take a tensor, so that torch's
// dispatch modes see that code.
#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "rank/backward_watch.h"
#include "rank/compiled_program.h"
#include "rank/expression/evaluation_scope.h"
#include "rank/expression/scalar_type.h"
#include "rank/input_values.h"
#include "rank/leaf.h"
#include "rank/python_operators.h"
#include "rank/rank_call.h"
#include "rank/simulated_call.h"
#include "rank/stated_truth.h"

namespace distgrad {
namespace {

using c10::IValue;
using Tensors = std::vector<at::Tensor>;

// The program of the case that this process is at, which has one thread for cases.
struct CurrentProgram {
  Program program;
  std::map<at::ScalarType, CompiledProgram> compiled;  // by the dtype of its constructors

  const CompiledProgram& in(at::ScalarType type) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      if (scalar_type(dtype) == type)
        return compiled.try_emplace(type, program, dtype, /*may_call_code=*/true).first->second;
    throw std::invalid_argument(std::string("no case has the dtype ") + c10::toString(type));
  }
};
std::unique_ptr<CurrentProgram> current;

std::vector<IValue> kept_for_backward;  // of the last forward
std::vector<std::shared_ptr<WatchedCall>> watched;

RankSlot* slot = nullptr;

void enter(int step, Phase phase) {
  if (!slot) return;
  slot->step.store(step, std::memory_order_relaxed);
  slot->phase.store(phase, std::memory_order_relaxed);
}

// Calls `run`, whose InvalidAt arrives in Python as a RuntimeError that ranks/program.py reads.
template <class Run>
auto told(const Run& run) {
  try {
    return run();
  } catch (const InvalidAt& error) {
    throw std::runtime_error("distgrad: invalid at\n" + error.pointer + "\n" + error.what() + "\n" +
                             error.caret);
  }
}

// Calls what Python registered under this name.
IValue in_python(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.back();
}

// Returns whether the loss is made of gradients.
bool load(std::string request, const at::Tensor& numbers) {
  kept_for_backward.clear();
  watched.clear();
  const at::Tensor own = numbers.contiguous();
  Frame frame;
  frame.header = std::move(request);
  frame.payload = {own.const_data_ptr<double>(), static_cast<std::size_t>(own.numel())};
  frame.keeper = std::make_shared<at::Tensor>(own);
  Decoded<WorkRequest> decoded = decode_request(frame);
  if (!decoded.value) throw std::runtime_error("the request cannot be read: " + decoded.error);
  current = std::make_unique<CurrentProgram>();
  std::visit([](auto& what) { current->program = std::move(what.program); }, decoded.value->what);
  // A driven call's program has no loss.
  const auto* run = std::get_if<RunRequest>(&decoded.value->what);
  if (run && run->drive) return false;
  return told(
      [] { return current->in(scalar_type(current->program.dtype)).loss_is_gradient_norm; });
}

const Input& input_at(std::int64_t index) {
  return current->program.inputs.at(static_cast<std::size_t>(index));
}

// Returns the input's leaf in the program's dtype: this rank's if it is local.
at::Tensor leaf(std::int64_t input, std::int64_t rank) {
  const Input& of = input_at(input);
  return told([&] {
    return of.is_local() ? local_value(current->program, of, static_cast<int>(rank))
                         : full_value(current->program, of);
  });
}

// Returns what the rank holds of the leaf.
at::Tensor held(std::int64_t input, const at::Tensor& leaf, std::int64_t rank) {
  const Input& of = input_at(input);
  if (of.is_local()) return leaf;
  return told([&] { return laid_out(current->program, of, leaf)[static_cast<std::size_t>(rank)]; });
}

// Runs the program's forward on one rank.
class RankForward {
 public:
  RankForward(int rank, at::TensorList values, at::ScalarType dtype, const at::Tensor& like)
      : compiled_(current->in(dtype)), like_(like), slots_(compiled_.rank_slots(rank)) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      slots_[compiled_.input_slots[i]] = values[i];
      if (values[i].requires_grad()) leaves_.push_back(values[i]);
    }
  }

  // The user's code may have kept less than backward needs.
  ~RankForward() { kept_for_backward = std::move(slots_); }
  RankForward(const RankForward&) = delete;

  std::tuple<at::Tensor, Tensors, Tensors> run() {
    const ConstructorDevice there(like_.device());
    int index = 0;
    for (const CompiledStep& step : compiled_.steps) run_step(step, index++);
    enter(index, Phase::kForward);
    at::Tensor loss = compiled_.loss.evaluate(slots_);
    if (compiled_.loss_is_gradient_norm) loss = squared_gradient_norm(loss, reached_, leaves_);
    return {loss, reported_, reached_};
  }

 private:
  void run_step(const CompiledStep& step, int index) {
    enter(index, Phase::kForward);
    const Step& what = *step.step;
    at::Tensor value = what.code() ? called(step, index) : step.text.evaluate(slots_);
    if (what.collective())
      value = in_python("distgrad_python::collective",
                        {index, value, step.depends_on_gradient, is_shared(value)})
                  .toTensor();
    if (what.is_reported()) {
      reported_.push_back(value);
      if (value.requires_grad()) {
        value.register_hook([index](const at::Tensor&) { enter(index, Phase::kBackward); });
        if (step.reaches_loss) reached_.push_back(value);
      }
    }
    slots_[step.slot] = std::move(value);
  }

  at::Tensor called(const CompiledStep& step, int index) {
    c10::impl::GenericList arguments(c10::AnyType::get());
    c10::List<bool> on_gradient, shared;
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      arguments.push_back(step.arguments[i].value(slots_));
      const IValue given = arguments.get(i);
      on_gradient.push_back(step.arguments_on_gradient[i]);
      shared.push_back(given.isTensor() && is_shared(given.toTensor()));
    }
    return in_python("distgrad_python::code", {index, arguments, on_gradient, shared, like_})
        .toTensor();
  }

  // Returns whether a value that other steps see lies in the same memory.
  bool is_shared(const at::Tensor& x) const {
    const auto memory = [](const at::Tensor& t) {
      return t.has_storage() ? t.storage().data() : nullptr;
    };
    return std::ranges::any_of(slots_, [&](const IValue& value) {
      return value.isTensor() && memory(value.toTensor()) == memory(x);
    });
  }

  const CompiledProgram& compiled_;
  const at::Tensor& like_;
  std::vector<IValue> slots_;
  Tensors leaves_, reported_, reached_;
};

// Takes what this rank holds of every input. Returns the loss, the values of the steps that are
// reported, and those that every rank's backward must reach.
std::tuple<at::Tensor, Tensors, Tensors> forward(std::int64_t rank, at::TensorList values,
                                                 at::ScalarType dtype, const at::Tensor& like) {
  return told([&] { return RankForward(static_cast<int>(rank), values, dtype, like).run(); });
}

// Gives the loss; its backward begins with `weight`. (Passing a cotangent to Python's backward
// would import torch.compile's modules for a second.)
struct Weighted : torch::autograd::Function<Weighted> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& loss,
                            double weight) {
    context->saved_data["weight"] = weight;
    return loss.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& cotangents) {
    return {at::full_like(cotangents[0], context->saved_data["weight"].toDouble()), at::Tensor()};
  }
};

at::Tensor end_of(const at::Tensor& loss, at::TensorList reached, double weight) {
  return Weighted::apply(anchored(loss, reached.vec()), weight);
}

// Runs all virtual ranks' forward in one graph, in float64. `values` are what the ranks hold, by
// input and rank. Returns the ranks' losses, and the reported steps' values, by step and rank.
std::tuple<Tensors, Tensors> simulate(at::TensorList values, const at::Tensor& like) {
  const CompiledProgram& compiled = current->in(at::kDouble);
  const int size = current->program.world_size;
  std::vector<std::vector<IValue>> slots;
  for (int r = 0; r < size; ++r) {
    slots.push_back(compiled.rank_slots(r));
    for (std::size_t i = 0; i < compiled.input_slots.size(); ++i)
      slots[r][compiled.input_slots[i]] = values[i * size + r];
  }
  const auto on_ranks = [&](const auto& evaluate) {
    Tensors by_rank;
    for (const auto& own : slots) by_rank.push_back(evaluate(own));
    return by_rank;
  };
  Tensors reported, losses;
  std::int64_t index = 0;
  for (const CompiledStep& step : compiled.steps) {
    Tensors by_rank;
    if (step.step->code()) {
      c10::impl::GenericList arguments(c10::AnyType::get());
      for (const CompiledText& argument : step.arguments) {
        c10::impl::GenericList of_ranks(c10::AnyType::get());
        for (const auto& own : slots) of_ranks.push_back(argument.value(own));
        arguments.push_back(of_ranks);
      }
      by_rank =
          in_python("distgrad_python::code_of_all", {index, arguments, like}).toTensorVector();
    } else {
      by_rank = on_ranks([&](const auto& own) { return step.text.evaluate(own); });
    }
    if (step.step->collective())
      by_rank = simulate_step(current->program, *step.step, by_rank, nullptr, nullptr);
    for (int r = 0; r < size; ++r) slots[r][step.slot] = by_rank[r];
    if (step.step->is_reported()) reported.insert(reported.end(), by_rank.begin(), by_rank.end());
    ++index;
  }
  for (int r = 0; r < size; ++r)
    losses.push_back(scalar_loss(compiled.loss.evaluate(slots[r]), current->program.loss, r));
  return {losses, reported};
}

// Watches a call of a step that is about to be made. Returns its number for made().
std::int64_t watch(std::int64_t step, const at::Tensor& operand) {
  const std::string& name = current->program.steps.at(static_cast<std::size_t>(step)).name;
  watched.push_back(std::make_shared<WatchedCall>(name, operand));
  return std::ssize(watched) - 1;
}

void made(std::int64_t call, const at::Tensor& output) {
  watch_graph(watched.at(static_cast<std::size_t>(call)), output);
}

// Returns the loss on a single device, and the leaves of inputs that require grad, in order.
std::tuple<at::Tensor, Tensors> on_single_device() {
  const SingleDeviceForward single = told([] { return run_single_device(current->program); });
  return {single.loss, differentiable(single.leaves)};
}

// Returns the parts of the gradient that the file states as its `index`-th truth.
Tensors stated(std::int64_t index) {
  const Program& program = current->program;
  return told([&] {
    std::vector<Leaf> leaves;
    for (const Input& input : program.inputs) leaves.push_back(make_leaf(program, input, false));
    Tensors parts;
    if (const auto gradient =
            stated_gradient(program, program.truth.at(static_cast<std::size_t>(index)), leaves))
      for (const auto& part : gradient->parts) parts.push_back(tensor_of(*part));
    return parts;
  });
}

}  // namespace

void keep_place_in(RankSlot* of_this_rank) { slot = of_this_rank; }

std::vector<ObservedCall> take_observed() { return observed_of(std::exchange(watched, {})); }

TORCH_LIBRARY(distgrad_rank, operators) {
  operators.def("load", load);
  operators.def("leaf", leaf);
  operators.def("held", held);
  operators.def("forward", forward);
  operators.def("end_of", end_of);
  operators.def("simulate", [](at::TensorList values, const at::Tensor& like) {
    return told([&] { return simulate(values, like); });
  });
  operators.def("watch", watch);
  operators.def("made", made);
  operators.def("delay_backward", delay_backward);
  operators.def("on_single_device", on_single_device);
  operators.def("stated", stated);
}

}  // namespace distgrad
