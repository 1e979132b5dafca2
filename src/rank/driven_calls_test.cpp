// Driven calls: on real ranks `reference` gives what the simulation says is right, of every
// collective and op, wherever operand and cotangent lie; a mutant does not.
#include "rank/driven_call.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>

#include "rank/real_ranks_test.h"

namespace distgrad {
namespace {

using testing::Partition;
using testing::Sample;
using Tensors = std::vector<at::Tensor>;

Strides reversed(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (std::size_t d = 1; d < shape.size(); ++d)
    strides[d] = strides[d - 1] * std::max<std::int64_t>(shape[d - 1], 1);
  return strides;
}

// Every other element of a row, in memory twice as long.
Strides spread(const Shape& shape) {
  Strides strides(shape.size(), 2);
  for (std::size_t d = shape.size(); d-- > 1;)
    strides[d - 1] = strides[d] * std::max<std::int64_t>(shape[d], 1);
  return strides;
}

Strides repeated_rows(const Shape& shape) {
  Strides strides = at::empty(shape).strides().vec();
  if (!strides.empty()) strides[0] = 0;
  return strides;
}

using Lie = Strides (*)(const Shape&);

struct Lying {
  const char* name;
  Lie operand, cotangent;
};
constexpr Lying kLying[] = {{"contiguous", nullptr, nullptr},
                            {"transposed", reversed, reversed},
                            {"spread", spread, spread},
                            {"repeated", nullptr, repeated_rows},
                            {"a repeated operand", repeated_rows, reversed}};

std::vector<Strides> strides_of(const Tensors& by_rank, Lie lie, std::int64_t leading) {
  std::vector<Strides> all;
  for (const at::Tensor& x : by_rank)
    if (lie) all.push_back(lie(x.sizes().slice(static_cast<std::size_t>(leading)).vec()));
  return all;
}

struct Driven {
  Program program;
  Drive drive;
};

Driven driven(const Sample& sample, const Partition& partition, DType dtype, const Lying& lying,
              bool with_units = false) {
  const Tensors operands = testing::operands_of(sample, partition);
  Driven d{testing::one_call(sample, partition, operands), {"g"}};
  d.program.dtype = dtype;
  const Tensors cotangents =
      testing::cotangents_of(testing::outputs_of(d.program, operands), 3, with_units);
  d.program.inputs.push_back(testing::local_input("g", cotangents, false));
  d.drive.operand_strides = strides_of(operands, lying.operand, 0);
  d.drive.cotangent_strides = strides_of(cotangents, lying.cotangent, 1);
  return d;
}

Simulation right(const Driven& d) {
  SimulateRequest request;
  request.program = d.program;
  request.drive = d.drive;
  return simulate(request);
}

DistributedRun observed(testing::RealRanks& ranks, const Driven& d, const std::string& subject) {
  RunRequest request{d.program, subject, "", {}};
  request.drive = d.drive;
  return ranks.run(std::move(request));
}

// How many elements lie further from what is right than they may.
int count_wrong(const Simulation& truth, const DistributedRun& run) {
  int wrong = 0;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const Array &is = truth.gradients[0][0].parts[r].value(),
                &bound = truth.bounds[0].parts[r].value();
    const std::optional<Array>& given = run.ranks[r].gradients.at(0);
    if (given && given->shape() != is.shape()) return -1;
    for (std::int64_t i = 0; i < is.size(); ++i) {
      EXPECT_LE(bound[i], 0.1 * std::max(1.0, std::abs(is[i]))) << "a bound that tells nothing";
      const double seen = given ? (*given)[i] : 0;
      if (std::isnan(seen) != std::isnan(is[i]) || std::abs(seen - is[i]) > bound[i]) ++wrong;
    }
  }
  return wrong;
}

void expect_right(testing::RealRanks& ranks, const Driven& d) {
  const Simulation truth = right(d);
  ASSERT_FALSE(truth.invalid) << truth.invalid->message;
  EXPECT_TRUE(truth.undecided.empty());
  EXPECT_EQ(truth.forward_only, "");
  const DistributedRun run = observed(ranks, d, "reference");
  ASSERT_FALSE(run.error) << run.error->message;
  EXPECT_EQ(count_wrong(truth, run), 0);
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    ASSERT_EQ(run.ranks[r].steps.size(), 1U);
    const Array &y = run.ranks[r].steps[0], &is = truth.steps[0].by_rank[r],
                &bound = truth.steps[0].bound[r];
    ASSERT_EQ(y.shape(), is.shape());
    for (std::int64_t i = 0; i < y.size(); ++i) EXPECT_LE(std::abs(y[i] - is[i]), bound[i]);
  }
}

TEST(DrivenCalls, ReferenceIsRightOfEveryCall) {
  testing::RealRanks ranks;
  for (const Sample& sample : testing::samples(3, at::kDouble, true)) {
    SCOPED_TRACE(sample.name);
    expect_right(ranks, driven(sample, {{0, 1, 2}}, DType::kFloat64, kLying[0], true));
  }
}

TEST(DrivenCalls, ReferenceIsRightInSubgroupsAndWhateverTheLayout) {
  testing::RealRanks ranks;
  const DType dtypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16};
  int i = 0;
  for (const Sample& sample : testing::samples(3, at::kDouble, false)) {
    ++i;
    for (const Lying& lying : kLying) {
      SCOPED_TRACE(sample.name + ", " + lying.name);
      expect_right(ranks, driven(sample, {{4, 0, 2}, {5, 3, 1}}, dtypes[i % 3], lying));
    }
  }
}

TEST(DrivenCalls, OneRankAndOneElement) {
  testing::RealRanks ranks;
  for (const Sample& sample : testing::samples(1, at::kDouble, false)) {
    SCOPED_TRACE(sample.name);
    expect_right(ranks, driven(sample, {{0}}, DType::kFloat64, kLying[0]));
  }
}

TEST(DrivenCalls, AMutantIsNotRight) {
  testing::RealRanks ranks;
  const Sample* all_reduce = nullptr;
  const auto samples = testing::samples(3, at::kDouble, false);
  for (const Sample& s : samples)
    if (s.name == "all_reduce sum [2,3]") all_reduce = &s;
  ASSERT_NE(all_reduce, nullptr);
  const Partition partition = {{4, 0, 2}, {5, 3, 1}};
  const auto wrong = [&](const std::string& subject, const Lying& lying) {
    const Driven d = driven(*all_reduce, partition, DType::kFloat64, lying);
    const DistributedRun run = observed(ranks, d, subject);
    EXPECT_FALSE(run.error) << run.error->message;
    return run.error ? -2 : count_wrong(right(d), run);
  };
  EXPECT_EQ(wrong("mutant:z=identity", kLying[0]), 0) << "another step's";
  for (const char* what : {"identity", "divided", "without:3", "group:world", "none", "linear:0"})
    EXPECT_GT(wrong(std::string("mutant:y=") + what, kLying[0]), 0) << what;
  EXPECT_EQ(wrong("mutant:y=as_stored", kLying[0]), 0)
      << "right as long as cotangents are contiguous";
  EXPECT_GT(wrong("mutant:y=as_stored", kLying[1]), 0);
}

// The dispatcher's, and operators of a user's library (tests/operators).
TEST(DrivenCalls, WhoeverMakesTheCall) {
  testing::RealRanks ranks;
  const std::string library =
      "library:" DISTGRAD_BIN_DIR "/../tests/example_operators.so:example::";
  const auto samples = testing::samples(3, at::kDouble, false);
  for (const Lying& lying : {kLying[0], kLying[1], kLying[3]}) {
    const Driven d = driven(samples[0], {{4, 0, 2}, {5, 3, 1}}, DType::kFloat64, lying);
    ASSERT_EQ(samples[0].name, "all_reduce sum [2,3]");
    const Simulation truth = right(d);
    const auto expect = [&](const std::string& subject, auto&& given) {
      SCOPED_TRACE(subject + ", " + lying.name);
      const DistributedRun run = observed(ranks, d, subject);
      ASSERT_FALSE(run.error) << run.error->message;
      for (int r = 0; r < 6; ++r) {
        const at::Tensor seen = tensor_of(run.ranks[r].gradients.at(0).value());
        EXPECT_TRUE(at::equal(seen, given(r))) << seen << given(r);
      }
    };
    const auto cotangent = [&](int r) {
      Strides strides = lying.cotangent ? d.drive.cotangent_strides[r] : Strides();
      if (!strides.empty()) strides.insert(strides.begin(), 1);
      return repeated(tensor_of(std::get<std::vector<Array>>(d.program.inputs[1].value)[r]),
                      strides);
    };
    const auto is_right = [&](int r) { return tensor_of(truth.gradients[0][0].parts[r].value()); };
    expect("in_place", cotangent);
    expect(library + "all_reduce", is_right);
    expect(library + "reduce_from_region", cotangent);
    expect(library + "halved", [&](int r) { return is_right(r) / 2; });
    if (lying.cotangent == reversed) {
      EXPECT_GT(count_wrong(truth, observed(ranks, d, library + "in_memory_order")), 0);
    } else {
      expect(library + "in_memory_order", is_right);
    }
  }
}

TEST(DrivenCalls, JudgesOnlyForwardWhereANaNIsAmongTheExtremes) {
  for (const Sample& sample : testing::samples(3, at::kDouble, false)) {
    Driven d = driven(sample, {{0, 1, 2}}, DType::kFloat64, kLying[0]);
    auto& operands = std::get<std::vector<Array>>(d.program.inputs[0].value);
    if (operands[1].size() == 0) continue;
    std::vector<double> values(operands[1].values().begin(), operands[1].values().end());
    values[0] = std::nan("");
    operands[1] = Array(operands[1].shape(), values);
    const bool picks = traits(sample.spec.kind).takes_op &&
                       (sample.spec.op == ReduceOp::kMin || sample.spec.op == ReduceOp::kMax);
    EXPECT_EQ(right(d).forward_only.empty(), !picks) << sample.name;
  }
}

TEST(DrivenCalls, NoneIsToldFromZeros) {
  testing::RealRanks ranks;
  const auto samples = testing::samples(3, at::kDouble, false);
  const Driven d = driven(samples[0], {{0, 1, 2}}, DType::kFloat64, kLying[0]);
  for (const RankResult& rank : observed(ranks, d, "mutant:y=none").ranks)
    EXPECT_FALSE(rank.gradients.at(0));
  for (const RankResult& rank : observed(ranks, d, "mutant:y=without:1").ranks)
    EXPECT_TRUE(rank.gradients.at(0));
}

TEST(DrivenCalls, SaysWhatRaisesWhere) {
  testing::RealRanks ranks;
  const auto samples = testing::samples(3, at::kDouble, false);
  const DistributedRun run = observed(
      ranks, driven(samples[0], {{0, 1, 2}}, DType::kFloat64, kLying[0]), "mutant:y=raises");
  ASSERT_TRUE(run.error);
  EXPECT_EQ(run.error->step, "y");
  EXPECT_TRUE(run.error->in_backward);
}

TEST(DrivenCalls, RefusesWhatIsNoSuchCall) {
  const auto samples = testing::samples(3, at::kDouble, false);
  Driven d = driven(samples[0], {{0, 1, 2}}, DType::kFloat64, kLying[0]);
  d.drive.cotangents = "h";
  EXPECT_NE(right(d).invalid.value().message.find("h"), std::string::npos);
  d.drive.cotangents = "x";  // no stack of cotangents
  EXPECT_TRUE(right(d).invalid);
  d.program.steps.clear();
  EXPECT_TRUE(right(d).invalid);
}

}  // namespace
}  // namespace distgrad
