// NCCL's arithmetic, emulated as its device code has it, lies within the bounds that the simulation
// derives: what the subject in_place measures on a GPU is NCCL's own `avg` and `premul_sum`, which
// scale every operand before the sum.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "rank/collectives/collective.h"
#include "tolerance/error_analysis.h"

namespace distgrad {
namespace {

struct Reduction {
  DType dtype;
  at::ScalarType type;
  ReduceOp op;
  double factor;  // of premul_sum
  int ranks;
};

// Values near each other as the dtype holds them; where they cancel the last one takes most of the
// sum away.
std::vector<at::Tensor> operands_of(const Reduction& how, bool cancel, std::mt19937& random) {
  constexpr std::int64_t kElements = 256;
  std::uniform_real_distribution<double> about(0.5, 1);
  std::vector<at::Tensor> operands;
  at::Tensor sum = at::zeros({kElements}, at::kDouble);
  for (int r = 0; r < how.ranks; ++r) {
    at::Tensor x = at::empty({kElements}, at::kDouble);
    for (std::int64_t i = 0; i < kElements; ++i) x.data_ptr<double>()[i] = about(random);
    if (cancel && r + 1 == how.ranks) x = -sum * 0.98;
    operands.push_back(x.to(how.type).to(at::kDouble));
    sum = sum + operands.back();
  }
  return operands;
}

// FuncPreMulSum of NCCL's src/device/reduce_kernel.h: the factor, each product and each sum rounded
// to the type; c10d and hostToDevRedOp of src/enqueue.cc round the factor.
at::Tensor as_nccl_does(const Reduction& how, const std::vector<at::Tensor>& operands,
                        std::mt19937& random) {
  const double scale = how.op == ReduceOp::kAvg ? 1.0 / how.ranks : how.factor;
  const at::Tensor factor = at::full({}, scale, at::kDouble).to(at::kFloat).to(how.type);
  std::vector<at::Tensor> terms = operands;
  std::shuffle(terms.begin(), terms.end(), random);
  at::Tensor total;
  for (const at::Tensor& x : terms) {
    const at::Tensor term =
        x.to(how.type) * (how.type == at::kDouble ? at::full({}, scale, at::kDouble) : factor);
    total = total.defined() ? total + term : term;
  }
  return total.to(at::kDouble);
}

void expect_within_bounds(const Reduction& how) {
  std::mt19937 random(17);
  CollectiveCall spec;
  spec.kind = CollectiveKind::kAllReduce;
  spec.op = how.op;
  spec.factor = how.factor;
  for (int repeat = 0; repeat < 8; ++repeat) {
    const std::vector<at::Tensor> operands = operands_of(how, repeat % 2 == 1, random);
    const at::Tensor got = as_nccl_does(how, operands, random);
    at::Tensor truth, bound;
    {
      ErrorAnalysis analysis(how.dtype, /*on_gpu=*/true);
      truth = collective(spec.kind).simulate({&spec, how.ranks}, operands)[0];
      bound = analysis.bound_of(truth);
    }
    const at::Tensor off = (got - truth).abs();
    const std::int64_t worst = (off - bound).argmax().item<std::int64_t>();
    EXPECT_LE(off[worst].item<double>(), bound[worst].item<double>())
        << traits(how.dtype).name << ' ' << name_of(how.op) << " of " << how.ranks
        << " ranks, factor " << how.factor;
  }
}

TEST(NcclArithmetic, AvgAndPremulSumLieWithinTheBounds) {
  for (const auto& [dtype, type] : {std::pair{DType::kFloat64, at::kDouble},
                                    {DType::kFloat32, at::kFloat},
                                    {DType::kBFloat16, at::kBFloat16},
                                    {DType::kFloat16, at::kHalf}})
    for (const int ranks : {2, 3, 5, 7, 8}) {
      expect_within_bounds({dtype, type, ReduceOp::kAvg, 1, ranks});
      // The last one lies midway between two numbers of bfloat16, but for a little.
      for (const double factor : {0.1, 1.0 / 3, 0.5, 1 + 0x1p-8 + 0x1p-20})
        expect_within_bounds({dtype, type, ReduceOp::kPremulSum, factor, ranks});
    }
}

}  // namespace
}  // namespace distgrad
