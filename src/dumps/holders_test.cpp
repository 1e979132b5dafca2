// Which ranks ought to have what, and what their shares and pieces make up together.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dumps/compare_dumps.h"
#include "dumps/comparison_report.h"
#include "dumps/sample_dumps.h"

namespace distgrad::dumps {
namespace {

using sample::kSize;
using sample::numbers;
using sample::plus;
using sample::times;
using sample::truth;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = DumpPlacement::Kind;

ParameterResult only(const Dump& reference, const Dump& observed,
                     const ComparisonOptions& options = {}) {
  return compare_dumps(reference, observed, options).parameters.at(0);
}

Dump held(const std::vector<std::vector<float>>& by_rank) {
  std::vector<std::optional<DumpTensor>> tensors;
  for (const auto& values : by_rank) tensors.emplace_back(sample::vector(values));
  return sample::by_rank("w", std::move(tensors));
}

Dump reference() { return sample::whole("w", sample::vector(truth)); }

// The truth in four shares that nothing simple holds between.
std::vector<std::vector<float>> shares() {
  const auto a = numbers(kSize, 2), b = numbers(kSize, 3), c = numbers(kSize, 4);
  return {a, b, c, plus(truth, times(plus(plus(a, b), c), -1))};
}

// --- Who has it ---

Dump stages() {
  Dump dump = sample::by_rank(
      "a", {sample::vector(truth), sample::vector(truth), std::nullopt, std::nullopt});
  for (const std::size_t rank : {2u, 3u}) {
    dump.ranks[rank].gradients.clear();
    dump.ranks[rank].gradients["b"].tensor = sample::vector(truth);
  }
  return dump;
}

TEST(Holders, OtherParametersInItsPlaceMakeAStage) {
  Dump whole = sample::whole("a", sample::vector(truth));
  whole.ranks[0].gradients["b"].tensor = sample::vector(truth);
  const DumpComparison c = compare_dumps(whole, stages(), {});
  EXPECT_TRUE(c.all_right()) << c.parameters[0].headline;
  EXPECT_THAT(c.notes, testing::Contains(HasSubstr("1 parameter on ranks 0, 1 alone")));
  // Within a stage nobody may lack it.
  Dump lacking = stages();
  lacking.ranks[1].gradients.clear();
  EXPECT_EQ(compare_dumps(whole, lacking, {}).parameters[0].headline,
            "missing on rank 1, right on rank 0");
}

// Each rank holds one expert of those listed, or none, and what all share.
DumpComparison experts(const std::vector<std::optional<int>>& by_rank) {
  Dump whole = sample::whole("gate", sample::vector(truth)), observed;
  for (unsigned i = 0; i < 4; ++i)
    whole.ranks[0].gradients[fmt::format("experts.{}.w", i)].tensor =
        sample::vector(numbers(kSize, 5 + i));
  for (const auto& expert : by_rank) {
    RankDump& rank = observed.ranks.emplace_back();
    rank.rank = static_cast<int>(observed.ranks.size()) - 1;
    rank.gradients["gate"] = whole.ranks[0].gradients["gate"];
    const std::string name = fmt::format("experts.{}.w", expert.value_or(-1));
    if (expert) rank.gradients[name] = whole.ranks[0].gradients[name];
  }
  return compare_dumps(whole, observed, {});
}

TEST(Holders, ARankWhoseExpertHasNoGradientLacksNoOther) {
  const DumpComparison one = experts({0, 1, std::nullopt, 3});
  for (const ParameterResult& r : one.parameters)
    EXPECT_EQ(r.headline, r.name == "experts.2.w" ? "no gradient on every rank" : "") << r.name;
  EXPECT_THAT(
      one.notes,
      testing::Contains(
          "1 parameter on rank 0 alone; in their place are others on ranks 1, 3, and none on "
          "rank 2."));
  // An expert that others hold more often may be this rank's.
  const DumpComparison twice = experts({0, 1, 0, std::nullopt});
  EXPECT_TRUE(twice.parameters[0].is_right());
  EXPECT_EQ(twice.parameters[1].headline, "missing on rank 3, right on rank 1");
  // One expert alone, or members that overlap, are no family held apart.
  EXPECT_FALSE(experts({0, std::nullopt, 0, 0}).parameters[0].is_right());
}

TEST(Holders, ARankThatMerelyHasLessLacksIt) {
  Dump whole = sample::whole("a", sample::vector(truth));
  whole.ranks[0].gradients["b"].tensor = sample::vector(truth);
  Dump less = sample::by_rank("a", {sample::vector(truth), sample::vector(truth)});
  less.ranks[0].gradients["b"].tensor = sample::vector(truth);
  const ParameterResult r = compare_dumps(whole, less, {}).parameters[1];
  EXPECT_EQ(r.headline, "missing on rank 1, right on rank 0");
  EXPECT_EQ(r.finding.text(), "no-gradient");
  EXPECT_TRUE(compare_dumps(whole, less, {.partly_held = {"b*"}}).all_right());
  EXPECT_FALSE(compare_dumps(whole, less, {.partly_held = {"a*"}}).all_right());
}

TEST(Holders, ElsewhereIsNotMissingUnlessItIsNowhere) {
  Dump observed = held({truth, truth});
  observed.ranks[1].gradients["w"] = {};
  observed.ranks[1].gradients["w"].elsewhere = true;
  EXPECT_TRUE(compare_dumps(reference(), observed, {}).all_right());
  observed.ranks[0].gradients["w"] = observed.ranks[1].gradients["w"];
  EXPECT_EQ(only(reference(), observed).explanation, Explanation::kMissing);
}

// --- Shares and pieces ---

TEST(Holders, AShareThatIsMissingIsMissing) {
  Dump observed = held(shares());
  sample::place(observed, "w", sample::mesh({{"tp", 4}}), {kSize}, {{Kind::kPartial, 0, 1, "sum"}});
  EXPECT_TRUE(compare_dumps(reference(), observed, {}).all_right());
  observed.ranks[2].gradients["w"].tensor.reset();
  const ParameterResult r = only(reference(), observed);
  EXPECT_EQ(r.finding.text(), "no-gradient");
  EXPECT_THAT(r.ranks, ElementsAre(2));
}

TEST(Holders, EveryReductionOfPartial) {
  const auto reduced = [](const std::string& op, const std::vector<float>& expected) {
    Dump observed = sample::by_rank(
        "w", {sample::vector({1, -4}), sample::vector({3, 2}), sample::vector({2, 5})});
    sample::place(observed, "w", sample::mesh({{"tp", 3}}), {2}, {{Kind::kPartial, 0, 1, op}});
    const Dump whole = sample::whole("w", sample::vector(expected));
    EXPECT_TRUE(compare_dumps(whole, observed, {}).all_right()) << op;
    EXPECT_TRUE(compare_dumps(observed, whole, {}).all_right()) << op;
    EXPECT_FALSE(
        compare_dumps(sample::whole("w", sample::vector({9, 9})), observed, {}).all_right());
  };
  reduced("sum", {6, 3});
  reduced("avg", {2, 1});
  reduced("max", {3, 5});
  reduced("min", {1, -4});
  reduced("product", {6, -40});
}

TEST(Holders, PlainSharesAreReducedWhereTheUserSaysSo) {
  const auto with = [](const std::string& pattern, const std::string& op) {
    return ComparisonOptions{.reductions = {{pattern, op}}};
  };
  EXPECT_TRUE(only(reference(), held(shares()), with("w", "sum")).is_right());
  EXPECT_TRUE(only(reference(), held(shares()), with("[vw]", "sum")).is_right());
  EXPECT_EQ(only(reference(), held(shares()), with("*", "mean")).headline,
            "1/4 of the reference (4 = the number of ranks)");
  Dump lacking = held(shares());
  lacking.ranks[1].gradients["w"].tensor.reset();
  EXPECT_EQ(only(reference(), lacking, with("*", "sum")).headline,
            "no gradient on rank 1, whose share of the sum is missing");
  lacking.ranks[1].gradients["w"].tensor = sample::vector({1, 2});
  EXPECT_EQ(only(reference(), lacking, with("*", "sum")).finding.text(), "shape");
}

TEST(Holders, APatternThatFitsNothingIsRefusedWithWhatWasMeant) {
  Dump whole;
  whole.ranks.resize(1);
  for (const char* name : {"layers.0.norm.weight", "layers.0.norm.bias", "head.weight"})
    whole.ranks[0].gradients[name].tensor = sample::vector(truth);
  const auto said = [&](const ComparisonOptions& options) -> std::string {
    try {
      compare_dumps(whole, whole, options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& [pattern, meant] : std::vector<std::pair<std::string, std::string>>{
           {"head.wieght", "head.weight"},
           {"layer.0.norm.weight", "layers.0.norm.weight"},
           {"laiers.*", "layers.*"},
           {"head", "head.*"},
           {"norm.*", "*.norm.*"},
           {"norm", "*.norm.*"},
           {"bias", "*.bias"},
           {"module.head.*", "head.*"}}) {
    const std::string hint =
        fmt::format("\"{}\" fits no parameter; did you mean \"{}\"?", pattern, meant);
    EXPECT_THAT(said({.partly_held = {pattern}}), testing::HasSubstr("--partly-held " + hint));
    EXPECT_THAT(said({.reductions = {{"head.*", "sum"}, {pattern, "sum"}}}),
                testing::HasSubstr("--reduce " + hint));
  }
  EXPECT_THAT(said({.partly_held = {"tower"}}),
              testing::EndsWith("\"tower\" fits no parameter: head.weight, layers.0.norm.bias, "
                                "layers.0.norm.weight"));
  EXPECT_EQ(said({.partly_held = {"*.weight", "head*"}}), "");
}

TEST(Holders, OwnSlicesAndZerosAreToldFromShares) {
  std::vector<std::vector<float>> slices(4, std::vector<float>(kSize, 0));
  for (std::size_t i = 0; i < kSize; ++i) slices[i / 6][i] = truth[i];
  const ParameterResult r = only(reference(), held(slices));
  EXPECT_EQ(r.finding.text(), "own-slice");
  EXPECT_THAT(r.headline, HasSubstr("own slice, and zeros elsewhere: needs a sum over ranks 0-3"));
  EXPECT_EQ(only(reference(), held(shares())).finding.text(), "missing-reduction");
}

TEST(Holders, AnElementThatNobodyHasIsTold) {
  const auto cut = [](int begin, int end) {
    return sample::vector({truth.begin() + begin, truth.begin() + end});
  };
  Dump observed = sample::by_rank("w", {cut(0, 8), cut(8, 16), cut(16, 24)});
  sample::place(observed, "w", sample::mesh({{"fsdp", 3}}), {kSize}, {{Kind::kShard, 0, 1, ""}});
  EXPECT_TRUE(compare_dumps(reference(), observed, {}).all_right());
  observed.ranks[1].gradients["w"] = {};
  observed.ranks[1].gradients["w"].elsewhere = true;
  const ParameterResult r = only(reference(), observed);
  EXPECT_EQ(r.headline, "8 of its 24 elements are on no rank");
  EXPECT_EQ(r.finding.text(), "shape");
  // Zeros need no place.
  std::vector<float> zeros = truth;
  std::fill(zeros.begin() + 8, zeros.begin() + 16, 0.0f);
  EXPECT_TRUE(compare_dumps(sample::whole("w", sample::vector(zeros)), observed, {}).all_right());
}

// Experts of [4, 2, 6] cut over ep in dimension 0 and over tp in dimension 2.
DumpTensor expert_piece(int ep, int tp) {
  const auto all = numbers(48, 7);
  std::vector<float> piece;
  for (int e = 2 * ep; e < 2 * ep + 2; ++e)
    for (int row = 0; row < 2; ++row)
      for (int column = 3 * tp; column < 3 * tp + 3; ++column)
        piece.push_back(all[static_cast<std::size_t>(e * 12 + row * 6 + column)]);
  return sample::tensor({2, 2, 3}, piece);
}

TEST(Holders, PlainPiecesOfTwoAxesAreJoined) {
  const Dump whole = sample::whole("experts", sample::tensor({4, 2, 6}, numbers(48, 7)));
  const auto joined = [&](const std::vector<std::pair<int, int>>& places) {
    std::vector<std::optional<DumpTensor>> pieces;
    for (const auto& [ep, tp] : places) pieces.emplace_back(expert_piece(ep, tp));
    return only(whole, sample::by_rank("experts", std::move(pieces)));
  };
  EXPECT_TRUE(joined({{0, 0}, {0, 1}, {1, 0}, {1, 1}}).is_right());
  EXPECT_TRUE(joined({{0, 0}, {1, 0}, {0, 1}, {1, 1}}).is_right());
  EXPECT_TRUE(  // dp between the two
      joined({{0, 0}, {0, 1}, {0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 0}, {1, 1}}).is_right());
  EXPECT_FALSE(joined({{0, 0}, {0, 1}, {1, 1}, {1, 0}}).is_right());
  EXPECT_EQ(joined({{0, 0}, {0, 1}, {1, 0}, {1, 1}}).arrangement,
            "pieces of a grid over the ranks, from the outermost: dimension 0, dimension 2");
}

TEST(Holders, PiecesThatNeedOppositeOrdersOfTheAxesAreUnclear) {
  const auto compared = [](std::vector<int> order_of_b, const std::vector<float>& b) {
    Dump whole, observed;
    for (const auto& [name, values] : {std::pair("a", numbers(16, 2)), std::pair("b", b)})
      (whole.ranks.empty() ? whole.ranks.emplace_back() : whole.ranks[0]).gradients[name].tensor =
          sample::tensor({4, 4}, values);
    for (int rank = 0; rank < 4; ++rank) {
      observed.ranks.emplace_back().rank = rank;
      for (const char* name : {"a", "b"}) {
        const int at = *name == 'a' ? rank : order_of_b[rank];
        const auto all = *name == 'a' ? numbers(16, 2) : b;
        std::vector<float> piece;
        for (const int row : {0, 1})
          for (const int column : {0, 1})
            piece.push_back(all[(at / 2 * 2 + row) * 4 + at % 2 * 2 + column]);
        observed.ranks.back().gradients[name].tensor = sample::tensor({2, 2}, piece);
      }
    }
    return compare_dumps(whole, observed, {});
  };
  EXPECT_TRUE(compared({0, 1, 2, 3}, numbers(16, 3)).all_right());
  const DumpComparison exchanged = compared({0, 2, 1, 3}, numbers(16, 3));
  for (const ParameterResult& r : exchanged.parameters) {
    EXPECT_EQ(r.explanation, Explanation::kUnclear);
    EXPECT_EQ(r.headline,
              "cannot be judged: no one order of the axes fits all parameters cut in this grid "
              "(dimension 0, dimension 1 fits a; dimension 1, dimension 0 fits b), so ranks may "
              "have exchanged pieces");
  }
  EXPECT_THAT(exchanged.notes, testing::IsEmpty());
  // A parameter that is right in either order contradicts no other one.
  EXPECT_TRUE(compared({0, 2, 1, 3}, std::vector<float>(16, 2)).all_right());
}

// --- Over what ---

TEST(Holders, ProcessGroupsAreNamed) {
  const auto pairs = [](Dump dump, const std::string& name) {
    for (RankDump& rank : dump.ranks) {
      rank.groups.push_back({name, {rank.rank % 2, rank.rank % 2 + 2}});
      rank.groups.push_back({"", {rank.rank / 2 * 2, rank.rank / 2 * 2 + 1}});
    }
    return dump;
  };
  const auto s = numbers(kSize, 2);
  const auto rest = plus(truth, times(s, -1));
  EXPECT_EQ(only(reference(), pairs(held({s, s, rest, rest}), "dp")).headline,
            "needs a sum over dp (ranks 0, 2; ranks 1, 3)");
  EXPECT_EQ(only(reference(), pairs(held({s, rest, s, rest}), "dp")).headline,
            "needs a sum over the process groups (ranks 0, 1; ranks 2, 3)");
  EXPECT_EQ(
      only(reference(),
           pairs(held({times(truth, 2), times(truth, 2), times(truth, 2), times(truth, 2)}), "dp"))
          .headline,
      "2 times the reference (2 = the size of dp, or the number of ranks of a process group) on "
      "every rank");
}

TEST(Holders, AGroupOfSomeRanksExplainsThoseAlone) {
  Dump observed =
      held({numbers(kSize, 2), plus(truth, times(numbers(kSize, 2), -1)), truth, truth});
  observed.ranks[0].groups = observed.ranks[1].groups = {{"pair", {0, 1}}};
  EXPECT_EQ(only(reference(), observed).headline,
            "needs a sum over pair (ranks 0, 1), right on ranks 2, 3");
  observed.ranks[3].gradients["w"].tensor = sample::vector(numbers(kSize, 9));
  EXPECT_EQ(only(reference(), observed).explanation, Explanation::kSomeRanks);
}

TEST(Holders, SumsThatTheDataCannotTellApartAreAllNamed) {
  const auto s = numbers(kSize, 2), rest = plus(truth, times(s, -1));
  Dump observed = held({s, rest, rest, s});
  sample::place(observed, "w", sample::mesh({{"dp", 2}, {"tp", 2}}), {kSize}, {{}, {}});
  EXPECT_EQ(only(reference(), observed).headline,
            "needs a sum over dp (ranks 0, 2; ranks 1, 3) or tp (ranks 0, 1; ranks 2, 3)");
}

TEST(Holders, ASumThatIsAMultipleIsNamedByWhatThereIs) {
  auto halved = shares();
  for (auto& share : halved) share = times(share, 1.0f / 3);
  const ComparisonOptions counted{.counts = {{"micro-batches", 3}}};
  EXPECT_EQ(only(reference(), held(halved), counted).headline,
            "the sum over ranks 0-3 is 1/3 of the reference (3 = the number of micro-batches)");
}

// --- What is said of all together ---

TEST(Holders, WhatDiffersByRankAndParameterIsOneGroup) {
  Dump whole, observed = sample::by_rank("p0", {std::nullopt, std::nullopt, std::nullopt});
  whole.path = "reference";
  whole.ranks.emplace_back();
  for (unsigned p = 0; p < 20; ++p) {
    const std::string name = "p" + std::to_string(p);
    whole.ranks[0].gradients[name].tensor = sample::vector(numbers(kSize, p));
    for (unsigned rank = 0; rank < 3; ++rank)
      observed.ranks[rank].gradients[name].tensor =
          sample::vector(times(numbers(kSize, p), 0.3137f + 0.1f * rank + 0.01f * p));
  }
  const std::string text = comparison_text(compare_dumps(whole, observed, {}), {});
  EXPECT_THAT(text, HasSubstr("FAIL  20 parameters   a multiple of the reference that differs by "
                              "rank\n"));
  EXPECT_THAT(text, HasSubstr("... and 12 more\n"));
  EXPECT_LT(text.find("p2 "), text.find("p3 "));
}

TEST(Holders, TheSameBatchOnAllRanksShowsNothing) {
  Dump observed = held({truth, truth, truth});
  EXPECT_EQ(compare_dumps(reference(), observed, {}).vacuous, "");
  for (RankDump& rank : observed.ranks) rank.local_digest = "abc";
  EXPECT_THAT(compare_dumps(reference(), observed, {}).vacuous,
              HasSubstr("every rank computed the same gradients before anything was reduced"));
  observed.ranks[2].local_digest = "abd";
  EXPECT_EQ(compare_dumps(reference(), observed, {}).vacuous, "");
}

TEST(Holders, NamesAreShownAsTheReferenceHasThem) {
  Dump whole = sample::whole("b.w", sample::vector(truth));
  whole.ranks[0].shown["b.w"] = "b.module.w";
  const ParameterResult r = only(whole, sample::whole("b.w", sample::vector(truth)));
  EXPECT_EQ(r.name, "b.module.w");
}

}  // namespace
}  // namespace distgrad::dumps
