// In float16 and bfloat16 right gradients are not accused, and mistakes are still found and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dumps/compare_dumps.h"
#include "dumps/comparison_report.h"
#include "dumps/patterns.h"
#include "dumps/sample_dumps.h"

namespace distgrad::dumps {
namespace {

using sample::numbers;
using sample::plus;
using sample::times;

constexpr std::size_t kLength = 64;

// A model of two parameters in bfloat16: `large`, always right on both ranks, and `w`. The numbers
// of `w` are given; the reference's largest gradient is 1, that of `large`.
struct Model {
  Dump reference = sample::whole("large", sample::bfloat16({kLength}, numbers(kLength, 1)));
  Dump observed = sample::by_rank("large", {sample::bfloat16({kLength}, numbers(kLength, 1)),
                                            sample::bfloat16({kLength}, numbers(kLength, 1)),
                                            sample::bfloat16({kLength}, numbers(kLength, 1))});

  Model(const std::vector<float>& truth, const std::vector<std::vector<float>>& by_rank) {
    const auto shape = [](const std::vector<float>& v) {
      return Shape{static_cast<std::int64_t>(v.size())};
    };
    reference.ranks[0].gradients["w"].tensor = sample::bfloat16(shape(truth), truth);
    for (std::size_t r = 0; r < by_rank.size(); ++r)
      observed.ranks[r].gradients["w"].tensor = sample::bfloat16(shape(by_rank[r]), by_rank[r]);
  }

  DumpComparison compared(const Tolerance& tolerance = {}) const {
    return compare_dumps(reference, observed, {.tolerance = tolerance});
  }
  ParameterResult w(const Tolerance& tolerance = {}) const {
    return compared(tolerance).parameters.back();
  }
};

std::vector<std::vector<float>> on_three_ranks(const std::vector<float>& values) {
  return {values, values, values};
}

TEST(Rounding, WhatIsZeroOnPaperIsNotJudged) {
  const auto noise = times(numbers(kLength, 2), 1e-4f), other = times(numbers(kLength, 3), 1e-4f);
  const Model model(noise, on_three_ranks(other));
  EXPECT_EQ(model.w().explanation, Explanation::kNoise) << model.w().headline;
  EXPECT_TRUE(model.compared().all_right());
  // Exactly zero where the reference has noise is right, too.
  EXPECT_EQ(Model(noise, on_three_ranks(times(noise, 0))).w().explanation, Explanation::kNoise);
  EXPECT_EQ(Model(times(noise, 100), on_three_ranks(times(noise, 0))).w().explanation,
            Explanation::kZero);
}

TEST(Rounding, AMistakeIsNamedHoweverSmallTheGradient) {
  const auto small = times(numbers(kLength, 2), 1e-3f), share = times(numbers(kLength, 3), 1e-3f);
  EXPECT_EQ(Model(small, on_three_ranks(times(small, 3))).w().headline,
            "3 times the reference (3 = the number of ranks) on every rank");
  const Model shares(small, {share, times(plus(small, times(share, -1)), 0.25f),
                             times(plus(small, times(share, -1)), 0.75f)});
  EXPECT_EQ(shares.w().headline, "needs a sum over ranks 0-2");
  EXPECT_FALSE(shares.compared().all_right());
}

TEST(Rounding, FactorsAreThoseThatTheDtypeCanShow) {
  const auto truth = times(numbers(kLength, 2), 0.5f);
  auto observed = times(truth, 2.9f / 3);  // a third, but for rounding on the way
  for (std::size_t i = 0; i < kLength; ++i) observed[i] *= i % 2 == 0 ? 1.04f : 1.02f;
  const ParameterResult r = Model(truth, on_three_ranks(times(observed, 1.0f / 3))).w();
  EXPECT_EQ(r.headline, "1/3 of the reference (3 = the number of ranks) on every rank");
  EXPECT_EQ(r.factor, 1.0 / 3);
}

TEST(Rounding, AKnownFactorIsPreferredToOneThatIsFitted) {
  const auto truth = numbers(kLength, 2);
  auto observed = plus(times(truth, 2.97f), times(numbers(kLength, 3), 0.12f));  // 4 % off
  EXPECT_EQ(Model(truth, on_three_ranks(observed)).w().headline,
            "3 times the reference (3 = the number of ranks) on every rank");
  const auto share = numbers(kLength, 4);
  const Model shares(truth, {share, plus(truth, times(share, -1)),
                             plus(times(truth, 1.96f), times(numbers(kLength, 5), 0.12f))});
  EXPECT_EQ(shares.w().headline, "needs the average over ranks 0-2");
}

TEST(Rounding, AFactorNearOneThatAllElementsShareIsToldOfEachRank) {
  const auto truth = numbers(kLength, 2);
  for (const auto& [factor, text] : {std::pair(0.9f, "0.9"), {0.95f, "0.95"}, {1.1f, "1.1"}}) {
    const ParameterResult r = Model(truth, on_three_ranks(times(truth, factor))).w();
    EXPECT_EQ(r.headline, std::string(text) + " times the reference on every rank");
    EXPECT_EQ(r.explanation, Explanation::kScaled);
  }
  const ParameterResult of_one = Model(truth, {truth, times(truth, 1.05f), truth}).w();
  EXPECT_EQ(of_one.headline, "1.05 times the reference on rank 1, right on ranks 0, 2");
  EXPECT_THAT(of_one.ranks, testing::ElementsAre(1));
  // The factor may be rounding if more than storing has moved the elements.
  const auto moved = plus(times(truth, 1.06f), times(numbers(kLength, 3), 0.0045f));
  EXPECT_EQ(Model(truth, on_three_ranks(moved)).w().explanation, Explanation::kClose);
  EXPECT_EQ(Model({1, -2}, on_three_ranks({1.05f, -2.1f})).w().explanation, Explanation::kClose);
}

// One learning rate or clip multiplies all, and rounding moves what is measured of small tensors.
TEST(Rounding, AFactorOfManyParametersIsOne) {
  Dump reference, observed;
  reference.path = "reference", observed.path = "observed";
  RankDump &whole = reference.ranks.emplace_back(), &rank = observed.ranks.emplace_back();
  rank.rank = 0;
  for (unsigned i = 0; i < 40; ++i) {
    const auto truth = numbers(8 + i % 3, i);
    const Shape shape = {static_cast<std::int64_t>(truth.size())};
    const std::string name = "layers." + std::to_string(i) + ".norm";
    whole.gradients[name].tensor = sample::bfloat16(shape, truth);
    rank.gradients[name].tensor = sample::bfloat16(shape, times(truth, 0.7315f));
  }
  const DumpComparison found = compare_dumps(reference, observed, {});
  const auto groups = groups_of(found.parameters);
  ASSERT_EQ(groups.size(), 1u) << comparison_text(found, {});
  EXPECT_EQ(groups[0].common, "every parameter");
}

TEST(Rounding, SharesThatDifferByRankNeedASum) {
  const auto truth = numbers(kLength, 2), a = numbers(kLength, 4), b = numbers(kLength, 5);
  const auto rest = plus(times(truth, 2.5f), times(plus(a, b), -1));
  EXPECT_EQ(Model(truth, {a, b, rest}).w().headline,
            "the sum over ranks 0-2 is 5/2 times the reference");
}

// Of files in a wide dtype it is not known what was on the way.
TEST(Rounding, NearIsPrecisionWhereAShortDtypeWasSeen) {
  const auto truth = numbers(kLength, 2);
  const auto near = plus(truth, times(numbers(kLength, 3), 0.01f));
  const auto compared = [&](const Tolerance& tolerance) {
    return compare_dumps(sample::whole("w", sample::vector(truth)),
                         sample::by_rank("w", {sample::vector(near)}), {.tolerance = tolerance})
        .parameters[0];
  };
  EXPECT_EQ(compared({}).explanation, Explanation::kClose);
  EXPECT_EQ(compared({}).finding.text(), "unexplained");
  EXPECT_THAT(compared({}).headline, testing::HasSubstr("a few percent"));
  EXPECT_THAT(advice_of(compared({})), testing::StartsWith("It is not said by what"));
  const ParameterResult seen = compared({.saw_short_dtype = true});
  EXPECT_EQ(seen.finding.text(), "precision");
  EXPECT_FALSE(seen.is_forgiven);
  EXPECT_THAT(advice_of(seen), testing::HasSubstr("shorter dtype"));
}

TEST(Rounding, NearIsForgivenInAShortDtypeOnly) {
  const auto truth = numbers(kLength, 2);
  const auto near = plus(truth, times(numbers(kLength, 3), 0.05f));
  const Model model(truth, on_three_ranks(near));
  EXPECT_EQ(model.w().explanation, Explanation::kClose);
  EXPECT_TRUE(model.w().is_forgiven);
  EXPECT_TRUE(model.compared().all_right());
  // Not where the user says how much is allowed.
  EXPECT_FALSE(model.compared({.rtol = 0.01}).all_right());
  const auto in_float32 = [&](const std::vector<float>& values) {
    return compare_dumps(sample::whole("w", sample::vector(truth)),
                         sample::by_rank("w", {sample::vector(values), sample::vector(values)}),
                         {});
  };
  EXPECT_FALSE(in_float32(plus(truth, times(numbers(kLength, 3), 1e-3f))).all_right());
  EXPECT_TRUE(in_float32(plus(truth, times(numbers(kLength, 3), 1e-5f))).all_right());
}

TEST(Rounding, AWiderParameterIsAsExactAsTheModelThatItIsIn) {
  const auto truth = numbers(kLength, 2), noise = times(numbers(kLength, 3), 0.01f);
  // `w` as a norm that is kept in float32, in a model that is in bfloat16 or is not.
  const auto compared = [&](bool is_mixed, const std::vector<float>& observed) {
    Model model(truth, on_three_ranks(truth));
    const auto set = [&](Dump& dump, const char* name, const std::vector<float>& values) {
      for (RankDump& rank : dump.ranks) rank.gradients[name].tensor = sample::vector(values);
    };
    set(model.reference, "w", truth);
    set(model.observed, "w", observed);
    if (is_mixed) return model.w();
    for (Dump* dump : {&model.reference, &model.observed}) set(*dump, "large", numbers(kLength, 1));
    return model.w();
  };
  EXPECT_EQ(compared(true, plus(truth, noise)).explanation, Explanation::kRight);
  EXPECT_EQ(compared(false, plus(truth, noise)).explanation, Explanation::kClose);
  EXPECT_EQ(compared(true, times(plus(truth, noise), 3)).explanation, Explanation::kScaled);
  EXPECT_EQ(compared(true, numbers(kLength, 3)).explanation, Explanation::kUnexplained);
  // What fits in float32 is no rounding.
  EXPECT_EQ(compared(true, times(truth, 1.0625f)).explanation, Explanation::kScaled);
}

TEST(Rounding, WhatIsFarOffIsNotForgiven) {
  const auto truth = numbers(kLength, 2);
  EXPECT_EQ(
      Model(truth, on_three_ranks(plus(truth, times(numbers(kLength, 3), 0.3f)))).w().explanation,
      Explanation::kUnexplained);
  auto one_row = truth;  // one element off by a third: the norm hardly moves
  one_row[9] += 0.33f;
  EXPECT_EQ(Model(truth, on_three_ranks(one_row)).w().explanation, Explanation::kUnexplained);
  EXPECT_EQ(
      Model(truth, {truth, truth, plus(truth, times(numbers(kLength, 3), 0.3f))}).w().headline,
      "wrong on rank 2, right on ranks 0, 1");
}

TEST(Rounding, NoiseOfAModelThatIsScaledIsNotJudged) {
  const auto noise = times(numbers(kLength, 2), 1e-4f), other = times(numbers(kLength, 3), 1e-4f);
  const auto compared = [&](float factor, float size_of_noise) {
    Model model(times(noise, size_of_noise), on_three_ranks(times(other, factor)));
    for (RankDump& rank : model.observed.ranks)
      rank.gradients["large"].tensor =
          sample::bfloat16({kLength}, times(numbers(kLength, 1), factor));
    return model.w();
  };
  EXPECT_EQ(compared(1024, 1).explanation, Explanation::kNoise) << compared(1024, 1).headline;
  // What the reference has more of than rounding is judged.
  EXPECT_EQ(compared(1024, 1000).explanation, Explanation::kUnexplained);
}

// Of a bias of four numbers each rank holds one: alone it has no norm to be judged by.
TEST(Rounding, APieceOfOneNumberIsRoundedAsTheWholeTensorIs) {
  const std::vector<float> truth{1.0f, -0.5f, 0.02f, 0.8f};
  const auto w_of = [&](const std::vector<float>& observed, bool is_short) {
    const auto made = [&](const std::vector<float>& values) {
      const Shape shape{static_cast<std::int64_t>(values.size())};
      return is_short ? sample::bfloat16(shape, values) : sample::tensor(shape, values);
    };
    std::vector<std::optional<DumpTensor>> pieces;
    for (const float value : observed) pieces.push_back(made({value}));
    Dump dump = sample::by_rank("w", pieces);
    sample::place(dump, "w", sample::mesh({{"dp", 4}}), {4},
                  {{DumpPlacement::Kind::kShard, 0, 1, ""}});
    return compare_dumps(sample::whole("w", made(truth)), dump, {}).parameters[0];
  };
  EXPECT_TRUE(w_of({1.0f, -0.5f, 0.03f, 0.8f}, true).is_right())
      << w_of({1.0f, -0.5f, 0.03f, 0.8f}, true).headline;
  EXPECT_FALSE(w_of({1.0f, -0.5f, 0.12f, 0.8f}, true).is_wrong());  // near
  EXPECT_TRUE(w_of({1.0f, -0.5f, 0.03f, 0.8f}, false).is_wrong());
  EXPECT_TRUE(w_of({1.0f, -0.5f, 0.02f, 0.4f}, true).is_wrong());
  EXPECT_TRUE(w_of({2.0f, -1.0f, 0.04f, 1.6f}, true).is_wrong());
  EXPECT_TRUE(w_of({1.0f, 0.0f, 0.02f, 0.8f}, true).is_wrong());
}

TEST(Rounding, ChanceExplainsNothing) {
  // One or two numbers of pure noise may well be half or the negative of the others.
  EXPECT_EQ(Model({2e-4f, -1e-4f}, on_three_ranks({1e-4f, -5e-5f})).w().explanation,
            Explanation::kNoise);
  EXPECT_EQ(Model({2e-4f}, on_three_ranks({-2e-4f})).w().explanation, Explanation::kNoise);
}

TEST(Rounding, CopiesOfTheReferenceMayDifferByIt) {
  Model model(numbers(kLength, 2), on_three_ranks(numbers(kLength, 2)));
  Dump reference = model.observed;
  for (std::size_t r = 0; r < 3; ++r) {
    const auto noise = times(numbers(kLength, 5 + static_cast<unsigned>(r)), 1e-4f);
    reference.ranks[r].gradients["bias"].tensor = sample::bfloat16({kLength}, noise);
    model.observed.ranks[r].gradients["bias"].tensor = sample::bfloat16({kLength}, noise);
  }
  for (const char* name : {"w", "large", "bias"})
    sample::place(reference, name, sample::mesh({{"tp", 3}}), {kLength}, {{}});
  const DumpComparison c = compare_dumps(reference, model.observed, {});
  EXPECT_TRUE(c.all_right()) << c.parameters.front().headline;
}

}  // namespace
}  // namespace distgrad::dumps
