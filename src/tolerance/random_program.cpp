#include "tolerance/random_program.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace distgrad::testing_programs {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

enum Collective {
  kSum = 1000,
  kAvg,
  kPremul,
  kProduct,
  kMax,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll
};
constexpr int kCollectiveCount = 9;

// Chooses how an execution does what is open. A null `random` means the simulation.
struct Execution {
  Random* random = nullptr;
  ErrorAnalysis* analysis = nullptr;
  Fault fault;
  int next_collective = 0;

  bool simulates() const { return random == nullptr; }
  bool coin() { return (*random)() & 1; }
};

// ---- sums as a subject may make them, each addition rounded

at::Tensor sum_in_some_order(const ByRank& terms, Random& random) {
  ByRank left = terms;
  std::shuffle(left.begin(), left.end(), random);
  const bool pairwise = random() & 1;
  while (left.size() > 1) {
    if (pairwise) {
      ByRank next;
      for (std::size_t i = 0; i + 1 < left.size(); i += 2) next.push_back(left[i] + left[i + 1]);
      if (left.size() % 2) next.push_back(left.back());
      left = std::move(next);
    } else {
      left[0] = left[0] + left.back();
      left.pop_back();
    }
  }
  return left[0];
}

// Multiplies random neighbours until one is left, which draws from every order and every
// association.
at::Tensor product_in_some_order(ByRank left, Random& random) {
  std::shuffle(left.begin(), left.end(), random);
  while (left.size() > 1) {
    const std::size_t i = random() % (left.size() - 1);
    left[i] = left[i] * left[i + 1];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return left[0];
}

// Multiplies over the ranks; its adjoint takes the cotangent and the other ranks' factors in some
// order, too.
struct ProductOfRanks : torch::autograd::Function<ProductOfRanks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& factors,
                            std::int64_t seed) {
    context->save_for_backward({factors});
    context->saved_data["seed"] = seed;
    Random random(static_cast<std::uint64_t>(seed));
    return product_in_some_order(factors.unbind(0), random);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& cotangents) {
    const ByRank factors = context->get_saved_variables()[0].unbind(0);
    Random random(static_cast<std::uint64_t>(context->saved_data["seed"].toInt()));
    ByRank gradients;
    for (std::size_t r = 0; r < factors.size(); ++r) {
      ByRank others = factors;
      others[r] = cotangents[0];
      gradients.push_back(product_in_some_order(others, random));
    }
    return {at::stack(gradients), at::Tensor()};
  }
};

// Puts one tensor on N ranks and sums their cotangents in some order.
struct FanOut : torch::autograd::Function<FanOut> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& x, std::int64_t ranks,
                             std::int64_t seed) {
    context->saved_data["seed"] = seed;
    tensor_list copies;
    for (std::int64_t r = 0; r < ranks; ++r) copies.push_back(x.clone());
    return copies;
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& cotangents) {
    Random random(static_cast<std::uint64_t>(context->saved_data["seed"].toInt()));
    ByRank defined;
    for (const at::Tensor& g : cotangents)
      if (g.defined()) defined.push_back(g);
    return {sum_in_some_order(defined, random), at::Tensor(), at::Tensor()};
  }
};

ByRank fan_out(const at::Tensor& x, int ranks, Execution& execution) {
  if (!execution.simulates()) {
    return FanOut::apply(x, static_cast<std::int64_t>(ranks),
                         static_cast<std::int64_t>((*execution.random)() >> 1));
  }
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), ranks);
  return x.unsqueeze(0).expand(sizes).unbind(0);
}

// ---- collectives

ByRank with_fault(ByRank operands, Execution& execution) {
  const Fault& fault = execution.fault;
  if (execution.next_collective++ != fault.collective || fault.kind == Fault::Kind::kNone)
    return operands;
  const std::size_t r = fault.rank, s = (fault.rank + 1) % operands.size();
  switch (fault.kind) {
    case Fault::Kind::kDropped:
      operands[r] = operands[r] * 0;
      break;
    case Fault::Kind::kDoubled:
      operands[r] = operands[r] * 2;
      break;
    case Fault::Kind::kSwapped:
      std::swap(operands[r], operands[s]);
      break;
    default:
      break;
  }
  return operands;
}

ByRank reduced(const ByRank& x, const Instruction& instruction, Execution& execution) {
  const int n = static_cast<int>(x.size());
  at::Tensor total;
  if (execution.simulates()) {
    const at::Tensor all = at::stack(x);
    switch (instruction.op) {
      case kSum:
        total = all.sum(0);
        break;
      case kAvg:
        total = all.sum(0) / static_cast<double>(n);
        break;
      case kPremul:
        total = (all * instruction.number).sum(0);
        break;
      case kMax:
        total = all.amax(0);
        break;
      default:
        total = x[0].alias();
        for (int r = 1; r < n; ++r) total = total * x[r];
    }
    return fan_out(total, n, execution);
  }
  const bool before = execution.coin();
  ByRank terms = x;
  const auto scale = [&](at::Tensor& t) {
    if (instruction.op == kAvg) t = t / static_cast<double>(n);
    if (instruction.op == kPremul) t = t * instruction.number;
  };
  switch (instruction.op) {
    case kMax:
      total = at::stack(x).amax(0);
      break;
    case kProduct:
      // The other form is how autograd differentiates a chain of factors.
      total = before ? product_in_some_order(x, *execution.random)
                     : ProductOfRanks::apply(at::stack(x),
                                             static_cast<std::int64_t>((*execution.random)() >> 1));
      break;
    default:
      if (before)
        for (at::Tensor& t : terms) scale(t);
      total = sum_in_some_order(terms, *execution.random);
      if (!before) scale(total);
  }
  return fan_out(total, n, execution);
}

// Returns true for half of the products. These have small and large factors, whose partial products
// leave the range of float16 in some orders.
bool has_uneven_factors(const Instruction& instruction) {
  return instruction.op == kProduct && instruction.variant >= 4;
}

ByRank with_uneven_factors(const ByRank& operands, const Instruction& instruction) {
  constexpr std::array kSizes = {0.0078125, 4.0, 0.03125, 2.5, 0.01, 6.0, 0.5, 0.02};
  ByRank out;
  for (std::size_t r = 0; r < operands.size(); ++r)
    out.push_back(operands[r] *
                  kSizes[(r + static_cast<std::size_t>(instruction.variant)) % kSizes.size()]);
  return out;
}

ByRank collective(const ByRank& operands, const Instruction& instruction, Execution& execution) {
  const ByRank x = with_fault(
      has_uneven_factors(instruction) ? with_uneven_factors(operands, instruction) : operands,
      execution);
  const int n = static_cast<int>(x.size());
  ByRank out;
  switch (instruction.op) {
    case kAllGather: {
      if (!execution.simulates() && execution.coin()) {  // as vissl does: zero-padded stacks,
                                                         // summed
        ByRank padded;
        for (int r = 0; r < n; ++r) {
          ByRank slots(n, at::zeros_like(x[r]));
          slots[r] = x[r];
          padded.push_back(at::stack(slots));
        }
        out = fan_out(sum_in_some_order(padded, *execution.random), n, execution);
      } else {
        const at::Tensor joined = at::stack(x);
        out = execution.simulates() ? ByRank(n, joined) : fan_out(joined, n, execution);
      }
      for (at::Tensor& y : out)
        y = instruction.variant % 2 ? y.mean(0) : y.select(0, instruction.variant / 2 % n);
      return out;
    }
    case kReduceScatter: {
      Instruction sum = instruction;
      sum.op = kSum;
      out = reduced(x, sum, execution);
      for (int r = 0; r < n; ++r) out[r] = out[r].roll(r, 0);
      return out;
    }
    case kBroadcast:
      return fan_out(x[instruction.variant % n], n, execution);
    case kAllToAll:
      for (int r = 0; r < n; ++r) out.push_back(x[(r + instruction.variant) % n] * 1);
      return out;
    default:
      return reduced(x, instruction, execution);
  }
}

// ---- local operators

using Local = at::Tensor (*)(const at::Tensor& x, const at::Tensor& y, const Instruction&);

struct LocalOp {
  std::string_view name;
  Local apply;
};

// Where a comparison or an index is needed, constants keep the decisions away from ties that
// rounding would change.
const std::array kLocals = {
    LocalOp{"x + y", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x + y; }},
    LocalOp{"x - y", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x - y; }},
    LocalOp{"x * y", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x * y; }},
    LocalOp{"x / (2 + y * y)", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x / (2 + y * y); }},
    LocalOp{"c * x", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return i.number * x; }},
    LocalOp{"x / c", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x / (1 + std::abs(i.number)); }},
    LocalOp{"c - x", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return i.number - x; }},
    LocalOp{"(x + big) - big", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return (x + 37) - 37; }},
    LocalOp{"tanh", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.tanh(); }},
    LocalOp{"sigmoid", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.sigmoid(); }},
    LocalOp{"exp(-x²)", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return (-(x * x)).exp(); }},
    LocalOp{"exp(tanh x)", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.tanh().exp(); }},
    LocalOp{"log(1 + x²)", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return (1 + x * x).log(); }},
    LocalOp{"sqrt(1 + x²)", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return (1 + x.square()).sqrt(); }},
    LocalOp{"sin", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.sin(); }},
    LocalOp{"cos", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.cos(); }},
    LocalOp{"x³/8", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.pow(3) * 0.125; }},
    LocalOp{"rsqrt", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return (0.5 + x * x).rsqrt(); }},
    LocalOp{"softmax", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x.softmax(i.variant % 2); }},
    LocalOp{"log_softmax", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x.log_softmax(i.variant % 2); }},
    LocalOp{"x - logsumexp", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x - x.logsumexp(i.variant % 2, true); }},
    LocalOp{"x - mean", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x - x.mean(i.variant % 2, true); }},
    LocalOp{"x + sum", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x + x.sum(i.variant % 2, true); }},
    LocalOp{"x @ yᵀ @ x / 4", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x.matmul(y.t()).matmul(x) * 0.25; }},
    LocalOp{"layer_norm", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) {
              const at::Tensor weight = y.select(0, 0);
              return at::layer_norm(x + 0.5 * y, {x.size(1)}, weight, weight * 0.5, 0.01);
            }},
    LocalOp{"relu", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.relu(); }},
    LocalOp{"abs", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.abs(); }},
    LocalOp{"maximum", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return at::maximum(x, y); }},
    LocalOp{"where", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return at::where(x.gt(y), x * y, y - x); }},
    LocalOp{"clamp", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.clamp(-0.7, 1.3); }},
    LocalOp{"cat and slice", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) {
              return at::cat({x, y * 2}, 0).slice(0, 1, 1 + x.size(0));
            }},
    LocalOp{"flip", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x.flip({i.variant % 2}); }},
    LocalOp{"index", [](const at::Tensor& x, const at::Tensor&, const Instruction&) {
              at::Tensor rows = at::zeros({x.size(0)}, at::kLong);
              const at::Tensor last = at::scalar_tensor(x.size(0) - 1, at::kLong);
              rows.index_put_({at::arange(x.size(0)) % 2 == 0}, last);
              return x.index_select(0, rows) + x;
            }},
    LocalOp{"x - var", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x - 0.25 * x.var(at::IntArrayRef{0, 1}, false, true); }},
    LocalOp{"x / norm", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x / (1 + x.norm()); }},
    LocalOp{"cumsum", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x.cumsum(i.variant % 2) * 0.5; }},
    LocalOp{"amax", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x - 0.5 * x.amax(i.variant % 2, true); }},
    LocalOp{"gelu", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return at::gelu(x, i.variant % 2 ? "tanh" : "none"); }},
    LocalOp{"silu", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return at::silu(x); }},
    LocalOp{"softplus", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return at::softplus(x); }},
    LocalOp{"log_sigmoid", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return at::log_sigmoid(x); }},
    LocalOp{"elu", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return at::elu(x); }},
    LocalOp{"erf", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return x.erf(); }},
    LocalOp{"prod", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) { return x * (1 + 0.25 * x.tanh()).prod(i.variant % 2, true); }},
    LocalOp{"addmm", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return at::addmm(x, x.matmul(y.t()), y, 1, 0.25); }},
    LocalOp{"nll", [](const at::Tensor& x, const at::Tensor&, const Instruction&) {
              const at::Tensor labels = at::arange(x.size(0), at::kLong) % x.size(1);
              return x * at::nll_loss(x.log_softmax(1), labels);
            }},
    LocalOp{"mse", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x * at::mse_loss(x, y) * 0.25; }},
    LocalOp{"std", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x / (0.5 + at::std(x + y * y, at::IntArrayRef{0, 1}, false, true)); }},
    LocalOp{"x * c tensor", [](const at::Tensor& x, const at::Tensor&, const Instruction& i) {
              return x * at::full({1, 1}, i.number, x.options().requires_grad(false));
            }},
    LocalOp{"atan2", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return at::atan2(x, 1 + y * y); }},
    LocalOp{"logaddexp", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return at::logaddexp(x, y); }},
    LocalOp{"lerp", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return at::lerp(x, y, 0.3); }},
    LocalOp{"tril", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return x.tril() + y.triu(); }},
    LocalOp{"pow", [](const at::Tensor& x, const at::Tensor& y, const Instruction&) { return (1 + x * x).pow(y.tanh()); }},
    LocalOp{"pow 1.7", [](const at::Tensor& x, const at::Tensor&, const Instruction&) { return (1 + x.abs()).pow(1.7) * 0.25; }},
};

// Lists operators that keep integers integers (or dyadic): + - * c*x c-x big relu abs maximum where
// cat flip index tril amax.
const std::array<std::size_t, 14> kExactLocals = {0, 1, 2, 4, 6, 7, 25, 26, 27, 28, 30, 31, 32, 36};

at::Tensor execute_local(const Instruction& instruction, const at::Tensor& x, const at::Tensor& y) {
  return kLocals[instruction.op].apply(x, y, instruction);
}

ByRank execute(const Instruction& instruction, const std::vector<ByRank>& values,
               Execution& execution) {
  if (instruction.op >= kSum) return collective(values[instruction.a], instruction, execution);
  ByRank out;
  for (std::size_t r = 0; r < values[0].size(); ++r)
    out.push_back(execute_local(instruction, values[instruction.a][r], values[instruction.b][r]));
  return out;
}

ByRank losses_of(const std::vector<ByRank>& values) {
  ByRank losses;
  for (std::size_t r = 0; r < values[0].size(); ++r) {
    // Weights differ by rank and element, since equal ones would hide swapped values.
    const at::Tensor last = values.back()[r], other = values[values.size() / 2][r];
    const at::Tensor weights =
        at::arange(last.numel(), last.options().requires_grad(false)).view(last.sizes()) * 0.25;
    losses.push_back((last * (weights + (1.0 + static_cast<double>(r))) + other).sum());
  }
  return losses;
}

Outcome execute_all(const RandomProgram& program, at::ScalarType dtype, Execution& execution) {
  std::vector<ByRank> values, leaves;
  for (std::size_t i = 0; i < program.leaves.size(); ++i) {
    ByRank own;
    // The simulation has one leaf for a replicated input, a run has a copy on each rank.
    const std::size_t copies = program.replicated[i] && execution.simulates() ? 1 : program.ranks;
    for (std::size_t r = 0; r < copies; ++r)
      own.push_back(
          program.leaves[i][program.replicated[i] ? 0 : r].to(dtype, false, true).requires_grad_());
    leaves.push_back(own);
    values.push_back(copies == 1 ? ByRank(program.ranks, own[0]) : own);
  }
  for (const Instruction& instruction : program.instructions)
    values.push_back(execute(instruction, values, execution));
  Outcome outcome;
  outcome.losses = losses_of(values);

  // Starts with cotangents of 1/N, or divides the gradients at the end.
  const bool divide_at_end = program.mean && !execution.simulates() && execution.coin();
  const double weight = program.mean && !divide_at_end ? 1.0 / program.ranks : 1.0;
  if (execution.analysis && program.mean) execution.analysis->set_backward_scale(program.ranks);
  tensor_list roots, cotangents, inputs;
  for (const at::Tensor& loss : outcome.losses) {
    roots.push_back(loss);
    cotangents.push_back(at::full({}, weight, loss.options().requires_grad(false)));
    if (execution.analysis)
      execution.analysis->add_bound(cotangents.back(),
                                    execution.analysis->rounding_of(cotangents.back()));
  }
  for (const ByRank& own : leaves) inputs.insert(inputs.end(), own.begin(), own.end());
  const tensor_list gradients =
      torch::autograd::grad(roots, inputs, cotangents, std::nullopt, false, true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ByRank own;
    for (std::size_t r = 0; r < leaves[i].size(); ++r, ++next)
      own.push_back(gradients[next].defined() ? gradients[next] : at::zeros_like(leaves[i][r]));
    if (program.replicated[i] && !execution.simulates())
      own = {sum_in_some_order(own, *execution.random)};
    if (divide_at_end)
      for (at::Tensor& g : own) g = g / static_cast<double>(program.ranks);
    outcome.gradients.push_back(own);
  }
  return outcome;
}

}  // namespace

int collectives_in(const RandomProgram& program) {
  return static_cast<int>(std::count_if(program.instructions.begin(), program.instructions.end(),
                                        [](const Instruction& i) { return i.op >= kSum; }));
}

std::string RandomProgram::text() const {
  static constexpr std::string_view names[] = {
      "all_reduce sum",     "all_reduce avg", "all_reduce premul_sum",
      "all_reduce product", "all_reduce max", "all_gather",
      "reduce_scatter",     "broadcast",      "all_to_all"};
  std::string out = std::to_string(ranks) + " ranks, " + (mean ? "mean" : "sum") + ", leaves";
  for (std::size_t i = 0; i < leaves.size(); ++i)
    out += " v" + std::to_string(i) + (replicated[i] ? " replicated" : " local");
  for (std::size_t k = 0; k < instructions.size(); ++k) {
    const Instruction& i = instructions[k];
    out += "\n  v" + std::to_string(leaves.size() + k) + " = ";
    out += i.op >= kSum ? std::string(names[i.op - kSum]) : std::string(kLocals[i.op].name);
    out += "  x = v" + std::to_string(i.a) + ", y = v" + std::to_string(i.b) +
           ", c = " + std::to_string(i.number) + ", variant " + std::to_string(i.variant);
  }
  return out;
}

RandomProgram random_program(Random& random, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto up_to = [&](int n) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(n));
  };
  RandomProgram program;
  program.ranks = 1 + up_to(8);
  program.mean = up_to(3) == 0;
  const std::int64_t rows = 1 + up_to(4), columns = 2 + up_to(4);
  std::normal_distribution<double> normal;
  std::vector<ByRank> values;
  const bool integers = up_to(4) == 0;
  for (int i = 0; i < 3; ++i) {
    program.replicated.push_back(i == 1);
    ByRank own;
    for (int r = 0; r < program.ranks; ++r) {
      at::Tensor x = at::empty({rows, columns}, at::kDouble);
      double* data = x.mutable_data_ptr<double>();
      for (std::int64_t k = 0; k < x.numel(); ++k)
        data[k] = integers ? up_to(5) - 2 : normal(random);
      own.push_back(x.to(dtype).to(at::kDouble));
    }
    program.leaves.push_back(own);
    values.push_back(i == 1 ? ByRank(program.ranks, own[0]) : own);
  }
  Execution execution;
  const int length = 4 + up_to(9);
  int collectives = 0;
  while (static_cast<int>(program.instructions.size()) < length) {
    Instruction instruction;
    const bool communicates = up_to(3) == 0;
    const std::size_t local =
        integers ? kExactLocals[random() % kExactLocals.size()] : random() % kLocals.size();
    instruction.op = communicates ? kSum + up_to(kCollectiveCount) : static_cast<int>(local);
    const int known = static_cast<int>(values.size());
    instruction.a = up_to(4) ? known - 1 : up_to(known);  // mostly a chain
    instruction.b = up_to(known);
    instruction.variant = up_to(8);
    // A decimal number is hardly ever in a dtype.
    instruction.number = std::round(normal(random) * 1000) / 1000;
    if (integers) instruction.number = 1 + up_to(3);
    const ByRank result = execute(instruction, values, execution);
    // Keeps values in the range of real programs; anything else would be noise or overflow.
    double size = 0;
    for (const at::Tensor& t : result) size = std::max(size, t.abs().max().item<double>());
    const double least = has_uneven_factors(instruction) ? 1e-6 : 1e-3;
    if (!(size < (integers ? 500 : 50)) || !(size > least)) continue;
    collectives += communicates;
    program.instructions.push_back(instruction);
    values.push_back(result);
  }
  if (collectives == 0) {
    Instruction sum;
    sum.op = kSum;
    sum.a = static_cast<int>(values.size()) - 1;
    program.instructions.push_back(sum);
  }
  return program;
}

Outcome simulate(const RandomProgram& program, const Fault& fault, ErrorAnalysis& analysis) {
  Execution execution;
  execution.analysis = &analysis;
  execution.fault = fault;
  return execute_all(program, at::kDouble, execution);
}

Outcome run(const RandomProgram& program, at::ScalarType dtype, const Fault& fault,
            Random& random) {
  Execution execution;
  execution.random = &random;
  execution.fault = fault;
  return execute_all(program, dtype, execution);
}

}  // namespace distgrad::testing_programs
