#include "rank/driven_call.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>

#include "rank/compiled_program.h"
#include "rank/input_values.h"
#include "rank/simulated_call.h"
#include "tolerance/error_analysis.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;

const Input& local_input(const Program& program, const std::string& name) {
  for (const Input& input : program.inputs)
    if (input.name == name && input.is_local()) return input;
  throw InvalidAt("", "a driven call needs a local input " + name);
}

const std::string& operand_name(const Program& program) {
  if (program.steps.size() != 1 || !program.steps[0].collective())
    throw InvalidAt("", "a driven program has one step, a collective");
  return program.steps[0].collective()->operand.text;
}

// Stacks a rank's tensors in one piece of memory.
class Stacked {
 public:
  explicit Stacked(const Shape& each) : shape_(each) {}

  void add(const at::Tensor& x) {
    const Array array = array_of(x);
    values_.insert(values_.end(), array.values().begin(), array.values().end());
    ++count_;
  }
  Array array() && {
    shape_.insert(shape_.begin(), count_);
    return Array(std::move(shape_), std::move(values_));
  }

 private:
  Shape shape_;
  std::int64_t count_ = 0;
  std::vector<double> values_;
};

bool is_zero(const Array& x) {
  return std::all_of(x.values().begin(), x.values().end(), [](double v) { return v == 0; });
}

// Holds all virtual ranks' operands and cotangents, in float64.
struct Given {
  Tensors leaves;
  std::vector<Tensors> cotangents;  // [k][rank]
};

Given given(const DrivenCall& call, int world_size) {
  Given all;
  for (int r = 0; r < world_size; ++r) {
    const at::Tensor operand =
        repeated(call.operand_on(r), call.operand_strides(r)).to(at::kDouble);
    all.leaves.push_back(operand.clone(at::MemoryFormat::Contiguous).requires_grad_(true));
    const Tensors own = call.cotangents_on(r);
    if (r == 0) all.cotangents.resize(own.size());
    if (own.size() != all.cotangents.size())
      throw InvalidAt("", "the ranks have different numbers of cotangents");
    for (std::size_t k = 0; k < own.size(); ++k)
      all.cotangents[k].push_back(repeated(own[k], call.cotangent_strides(r)).to(at::kDouble));
  }
  return all;
}

// Pulls the k-th cotangents back to the operands. A result is undefined if its operand has no part
// in any output.
Tensors pulled_back(const Tensors& outputs, const Tensors& leaves, const Tensors& cotangents) {
  Tensors ends, starts;
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    if (!outputs[r].requires_grad())
      continue;  // zeros off a root: their cotangent counts for nothing
    ends.push_back(outputs[r]);
    starts.push_back(cotangents[r]);
  }
  if (ends.empty()) return Tensors(leaves.size());
  return torch::autograd::grad(ends, leaves, starts, /*retain_graph=*/true, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

}  // namespace

DrivenCall::DrivenCall(const Program& program, const Drive& drive)
    : program_(program),
      drive_(drive),
      operand_(local_input(program, operand_name(program))),
      cotangents_(local_input(program, drive.cotangents)) {}

at::Tensor DrivenCall::operand_on(int rank) const { return local_value(program_, operand_, rank); }

std::vector<at::Tensor> DrivenCall::cotangents_on(int rank) const {
  const at::Tensor stacked = local_value(program_, cotangents_, rank);
  if (stacked.dim() == 0)
    throw InvalidAt(cotangents_.pointer, "the cotangents are to be stacked along a first dim");
  return stacked.unbind(0);
}

Simulation simulate_driven(const SimulateRequest& request) {
  const Program& program = request.program;
  const DrivenCall call(program, *request.drive);
  Simulation out;
  const auto [leaves, cotangents] = given(call, program.world_size);
  std::optional<ErrorAnalysis> analysis;
  if (request.with_bounds) analysis.emplace(program.dtype, request.on_gpu);
  if (analysis) analysis->set_place("step " + call.step().name);
  out.forward_only = why_forward_only(*call.step().collective(), leaves);
  const Tensors outputs = simulate_step(program, call.step(), leaves, nullptr, nullptr);
  StepValue& value = out.steps.emplace_back();
  value.step = call.step().name;
  for (const at::Tensor& y : outputs) {
    value.by_rank.push_back(array_of(y));
    if (analysis) value.bound.push_back(array_of(analysis->bound_of(y)));
  }
  std::vector<Stacked> gradients, bounds;
  for (const at::Tensor& x : leaves) gradients.emplace_back(x.sizes().vec());
  bounds = gradients;
  for (const Tensors& own : cotangents) {
    const Tensors grads = pulled_back(outputs, leaves, own);
    for (std::size_t r = 0; r < leaves.size(); ++r) {
      const at::Tensor x = grads[r].defined() ? grads[r] : at::zeros_like(leaves[r].detach());
      gradients[r].add(x);
      if (analysis) bounds[r].add(analysis->bound_of(x));
    }
  }
  Gradient gradient{call.operand().name, {}}, bound = gradient;
  for (Stacked& x : gradients) gradient.parts.emplace_back(std::move(x).array());
  out.gradients = {{std::move(gradient)}};
  if (!analysis) return out;
  for (Stacked& x : bounds) bound.parts.emplace_back(std::move(x).array());
  out.exact = std::all_of(bound.parts.begin(), bound.parts.end(),
                          [](const auto& part) { return is_zero(*part); });
  out.bounds = {std::move(bound)};
  out.undecided = analysis->undecided();
  return out;
}

}  // namespace distgrad
