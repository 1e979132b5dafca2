// Every explanation, from dumps made to deserve it; and that right gradients are never accused.
#include "dumps/compare_dumps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "dumps/comparison_report.h"
#include "dumps/sample_dumps.h"

namespace distgrad::dumps {
namespace {

using sample::kSize;
using sample::numbers;
using sample::times;
using sample::truth;
using testing::HasSubstr;
using Kind = DumpPlacement::Kind;

ParameterResult result_of(const Dump& reference, const Dump& observed,
                          const Tolerance& tolerance = {}) {
  const DumpComparison c = compare_dumps(reference, observed, {.tolerance = tolerance});
  EXPECT_EQ(c.parameters.size(), 1u);
  return c.parameters.at(0);
}

// The reference numbers(kSize, 1), whole, and a copy on each rank.
ParameterResult copies(std::vector<std::vector<float>> by_rank, const Tolerance& options = {}) {
  std::vector<std::optional<DumpTensor>> tensors;
  for (auto& values : by_rank) tensors.emplace_back(sample::vector(std::move(values)));
  return result_of(sample::whole("w", sample::vector(numbers(kSize, 1))),
                   sample::by_rank("w", std::move(tensors)), options);
}

void expect(const ParameterResult& r, Explanation explanation, const std::string& headline) {
  EXPECT_EQ(row_of(r.explanation).name, row_of(explanation).name) << r.headline;
  EXPECT_EQ(r.headline, headline);
}

TEST(CompareDumps, CopiesOfTheReferenceAreRight) {
  const ParameterResult r = copies({truth, truth});
  EXPECT_EQ(r.explanation, Explanation::kRight);
  EXPECT_TRUE(r.bitwise);
}

TEST(CompareDumps, RoundingIsRightAndWhatIsBeyondItIsNear) {
  std::vector<float> noisy = truth;
  for (std::size_t i = 0; i < noisy.size(); ++i) noisy[i] *= 1 + (i % 2 == 0 ? 1e-5f : -1e-5f);
  EXPECT_EQ(copies({noisy, truth}).explanation, Explanation::kRight);
  for (std::size_t i = 0; i < noisy.size(); ++i)
    noisy[i] = truth[i] * (1 + (i % 2 == 0 ? 4e-3f : -4e-3f));
  EXPECT_EQ(copies({noisy, noisy}).explanation, Explanation::kClose);
  EXPECT_EQ(copies({noisy, noisy}, {.dtype = DType::kBFloat16}).explanation, Explanation::kRight);
  EXPECT_EQ(copies({noisy, noisy}, {.rtol = 0.01}).explanation, Explanation::kRight);
}

TEST(CompareDumps, ElementwiseIsStricter) {
  std::vector<float> off = truth;
  off[5] = truth[5] * 1.0001f;  // far below the norm's tolerance
  EXPECT_EQ(copies({off}).explanation, Explanation::kRight);
  EXPECT_NE(copies({off}, {.rtol = 1e-5, .elementwise = true}).explanation, Explanation::kRight);
  EXPECT_EQ(copies({off}, {.rtol = 1e-3, .elementwise = true}).explanation, Explanation::kRight);
}

TEST(CompareDumps, ScaledByTheWorldAndItsInverse) {
  expect(copies({times(truth, 4), times(truth, 4), times(truth, 4), times(truth, 4)}),
         Explanation::kScaled, "4 times the reference (4 = the number of ranks) on every rank");
  expect(copies({times(truth, .5), times(truth, .5)}), Explanation::kScaled,
         "1/2 of the reference (2 = the number of ranks) on every rank");
  expect(copies({times(truth, -1), times(truth, -1)}), Explanation::kScaled,
         "the negative of the reference on every rank");
}

TEST(CompareDumps, ScaledByOtherConstants) {
  expect(
      copies({times(truth, 65536), times(truth, 65536)}), Explanation::kScaled,
      "65536 times the reference (2^16: a loss scale that was not taken out again?) on every rank");
  expect(copies({times(truth, 1.5)}), Explanation::kScaled, "3/2 times the reference");
  const ParameterResult clipped = copies({times(truth, 0.137137f)});
  expect(clipped, Explanation::kScaled, "0.137 times the reference");
  EXPECT_FALSE(clipped.factor_known);
}

TEST(CompareDumps, OneNumberIsNoEvidenceOfAConstant) {
  const auto scalar = [](float reference, float observed) {
    return result_of(
        sample::whole("w", sample::tensor({}, {reference})),
        sample::by_rank("w", {sample::tensor({}, {observed}), sample::tensor({}, {observed})}));
  };
  EXPECT_EQ(scalar(3, 0.123f).explanation, Explanation::kUnexplained);
  EXPECT_EQ(scalar(3, 6).explanation, Explanation::kScaled);
}

TEST(CompareDumps, SharesThatAddUpNeedASum) {
  const auto share = numbers(kSize, 2);
  std::vector<float> rest;
  for (std::size_t i = 0; i < kSize; ++i) rest.push_back(truth[i] - share[i]);
  expect(copies({share, rest}), Explanation::kSum, "needs a sum over ranks 0, 1");
  expect(copies({share, rest, share, rest}), Explanation::kSum,
         "needs a sum over ranks 0, 1; ranks 2, 3");
  expect(copies({times(share, 2), times(rest, 2)}), Explanation::kSum,
         "needs the average over ranks 0, 1");
  // Multiples may add up by chance.
  const std::vector<float> nothing(kSize);
  expect(copies({truth, nothing}), Explanation::kSum,
         "needs a sum over ranks 0, 1: zero on rank 1, right on rank 0");
  expect(copies({times(truth, -1), times(truth, 2)}), Explanation::kSum,
         "needs a sum over ranks 0, 1: 2 times the reference (2 = the number of ranks) on rank 1, "
         "the negative of the reference on rank 0");
}

TEST(CompareDumps, WhoIsRightIsInNoSum) {
  const auto share = numbers(kSize, 2), other = numbers(kSize, 3);
  const auto without = [](std::vector<float> values, const std::vector<float>& taken) {
    return sample::plus(std::move(values), times(taken, -1));
  };
  const ParameterResult r = copies({share, without(truth, share), truth});
  expect(r, Explanation::kSum, "needs a sum over ranks 0, 1, right on rank 2");
  EXPECT_EQ(r.ranks, (std::vector<int>{0, 1}));
  expect(copies({share, other, without(without(truth, share), other), truth}), Explanation::kSum,
         "needs a sum over ranks 0-2, right on rank 3");
  expect(copies({truth, without(times(truth, 2), share), share, truth}), Explanation::kSum,
         "needs the average over ranks 1, 2, right on ranks 0, 3");
  // Nor does it take part in a sum that is a multiple.
  expect(copies({share, without(times(truth, 1.7f), share), truth}), Explanation::kSomeRanks,
         "wrong on ranks 0, 1, right on rank 2");
}

TEST(CompareDumps, TheAxisThatLacksASumIsNamed) {
  const auto a = numbers(kSize, 2), b = numbers(kSize, 3);
  std::vector<float> not_a, not_b;
  for (std::size_t i = 0; i < kSize; ++i) {
    not_a.push_back(truth[i] - a[i]);
    not_b.push_back(truth[i] - b[i]);
  }
  const DumpMesh mesh = sample::mesh({{"dp", 2}, {"tp", 2}});
  const auto placed = [&](const std::vector<std::vector<float>>& by_rank) {
    std::vector<std::optional<DumpTensor>> tensors;
    for (const auto& values : by_rank) tensors.emplace_back(sample::vector(values));
    Dump observed = sample::by_rank("w", std::move(tensors));
    sample::place(observed, "w", mesh, {kSize}, {{}, {}});
    return result_of(sample::whole("w", sample::vector(truth)), observed);
  };
  expect(placed({a, not_a, b, not_b}), Explanation::kSum,
         "needs a sum over tp (ranks 0, 1; ranks 2, 3)");
  expect(placed({a, b, not_a, not_b}), Explanation::kSum,
         "needs a sum over dp (ranks 0, 2; ranks 1, 3)");
}

TEST(CompareDumps, ARankThatDiffersFromItsReplicasIsNamed) {
  expect(copies({truth, truth, numbers(kSize, 9)}), Explanation::kSomeRanks,
         "wrong on rank 2, right on ranks 0, 1");
  expect(copies({truth, times(truth, .25f), truth}), Explanation::kSomeRanks,
         "1/4 of the reference on rank 1, right on ranks 0, 2");
  expect(copies({numbers(kSize, 5), numbers(kSize, 9)}), Explanation::kUnsynchronised,
         "wrong on every rank, and ranks that should hold copies differ");
  EXPECT_EQ(copies({numbers(kSize, 5), numbers(kSize, 5)}).explanation, Explanation::kUnexplained);
}

TEST(CompareDumps, MissingZeroAndNotFinite) {
  const Dump reference = sample::whole("w", sample::vector(truth));
  expect(result_of(reference, sample::by_rank("w", {std::nullopt, std::nullopt})),
         Explanation::kMissing, "no gradient on every rank");
  std::vector<float> rounded = truth;
  rounded[7] = std::nextafter(rounded[7], 9.0f);
  const ParameterResult missing =
      result_of(reference, sample::by_rank("w", {sample::vector(rounded), std::nullopt}));
  expect(missing, Explanation::kSomeRanks, "missing on rank 1, right on rank 0");
  EXPECT_FALSE(missing.worst) << "rank 0's rounding is shown as what is wrong";
  expect(copies({times(truth, 0), times(truth, 0)}), Explanation::kZero, "zero on every rank");
  std::vector<float> nan = truth;
  nan[7] = NAN;
  const ParameterResult r = copies({nan, truth});
  expect(r, Explanation::kSomeRanks,
         "NaN or infinite in places where the reference is not on rank 0, right on rank 1");
  EXPECT_THAT(r.worst->index, testing::ElementsAre(7));
}

TEST(CompareDumps, NoGradientIsAsGoodAsZero) {
  const Dump zero = sample::whole("w", sample::vector(times(truth, 0)));
  const Dump none = sample::by_rank("w", {std::nullopt});
  EXPECT_EQ(result_of(zero, none).explanation, Explanation::kRight);
  EXPECT_EQ(result_of(none, zero).explanation, Explanation::kRight);
  EXPECT_EQ(result_of(none, sample::whole("w", sample::vector(truth))).explanation,
            Explanation::kExtra);
}

TEST(CompareDumps, TheSameNaNOnBothSidesIsRightAndInTheReferenceAloneUnclear) {
  std::vector<float> nan = truth;
  nan[3] = NAN;
  nan[4] = INFINITY;
  const auto compared = [&](const std::vector<float>& observed) {
    return result_of(sample::whole("w", sample::vector(nan)),
                     sample::by_rank("w", {sample::vector(observed)}));
  };
  EXPECT_EQ(compared(nan).explanation, Explanation::kRight);
  EXPECT_THAT(compared(nan).notes,
              testing::ElementsAre("NaN or infinite at the same elements of both runs"));
  expect(compared(truth), Explanation::kUnclear,
         "cannot be judged: the reference itself is NaN or infinite in places where the run "
         "differs; the other elements are right");
  EXPECT_FALSE(compared(truth).worst.has_value());
  EXPECT_EQ(compared(times(truth, 1.5f)).headline, "differs, and nothing simple explains it");
  nan[4] = -INFINITY;
  auto other = nan;
  other[4] = INFINITY;
  EXPECT_EQ(compared(other).explanation, Explanation::kUnclear);
  other[5] = NAN;
  EXPECT_EQ(compared(other).explanation, Explanation::kNotFinite);
}

TEST(CompareDumps, SquareTransposeIsNamed) {
  const auto values = numbers(16, 1);
  std::vector<float> transposed(16);
  for (std::size_t i = 0; i < 16; ++i) transposed[i] = values[i % 4 * 4 + i / 4];
  expect(result_of(sample::whole("w", sample::tensor({4, 4}, values)),
                   sample::by_rank("w", {sample::tensor({4, 4}, transposed)})),
         Explanation::kTransposed, "the transpose of the reference");
}

// --- Pieces ---

// Rows [begin, end) of the 8 x 3 reference.
DumpTensor rows(const std::vector<float>& all, int begin, int end) {
  return sample::tensor({end - begin, 3}, {all.begin() + begin * 3, all.begin() + end * 3});
}

Dump reference_8x3() { return sample::whole("w", sample::tensor({8, 3}, truth)); }

TEST(CompareDumps, PiecesWithoutMetadataAreJoined) {
  ParameterResult r =
      result_of(reference_8x3(),
                sample::by_rank("w", {rows(truth, 0, 3), rows(truth, 3, 6), rows(truth, 6, 8)}));
  EXPECT_EQ(r.explanation, Explanation::kRight) << r.headline;
  EXPECT_EQ(r.arrangement, "pieces of dimension 0, in the order of the ranks");
  // tp outside dp: ranks 0 and 1 hold the same piece.
  r = result_of(reference_8x3(), sample::by_rank("w", {rows(truth, 0, 4), rows(truth, 0, 4),
                                                       rows(truth, 4, 8), rows(truth, 4, 8)}));
  EXPECT_EQ(r.explanation, Explanation::kRight) << r.headline;
  EXPECT_EQ(r.arrangement, "pieces of dimension 0, each held by 2 consecutive ranks");
  // FSDP1: unequal pieces of the flattened tensor, one of them empty.
  r = result_of(
      reference_8x3(),
      sample::by_rank("w", {sample::vector({truth.begin(), truth.begin() + 7}), sample::vector({}),
                            sample::vector({truth.begin() + 7, truth.end()})}));
  EXPECT_EQ(r.explanation, Explanation::kRight) << r.headline;
}

// torch.chunk gives the last ranks what is left, perhaps nothing.
TEST(CompareDumps, TheLastPiecesMayBeEmpty) {
  const auto pieces = [](std::vector<std::optional<DumpTensor>> tensors) {
    return result_of(reference_8x3(), sample::by_rank("w", std::move(tensors))).explanation;
  };
  const DumpTensor none = sample::tensor({0, 3}, {});
  EXPECT_EQ(pieces({rows(truth, 0, 4), rows(truth, 4, 8), none, none}), Explanation::kRight);
  EXPECT_EQ(pieces({rows(truth, 0, 4), rows(truth, 4, 8), none, rows(truth, 0, 4),
                    rows(truth, 4, 8), none}),
            Explanation::kRight);
  EXPECT_EQ(pieces({rows(truth, 0, 4), none, none, none}), Explanation::kShape);
  EXPECT_EQ(pieces({rows(truth, 4, 8), rows(truth, 0, 4), none, none}), Explanation::kOtherSlice);
}

std::vector<float> part(std::size_t begin, std::size_t end, std::size_t padding = 0,
                        float pad = 0) {
  std::vector<float> values(truth.begin() + static_cast<std::ptrdiff_t>(begin),
                            truth.begin() + static_cast<std::ptrdiff_t>(end));
  values.resize(values.size() + padding, pad);
  return values;
}

// ZeRO by hand: flattened, padded to a multiple of the ranks, cut.
TEST(CompareDumps, PaddedPiecesAreRightWhereThePaddingIsZero) {
  const auto pieces = [](std::vector<std::vector<float>> by_rank) {
    std::vector<std::optional<DumpTensor>> tensors;
    for (auto& values : by_rank) tensors.emplace_back(sample::vector(std::move(values)));
    return result_of(reference_8x3(), sample::by_rank("w", std::move(tensors)));
  };
  const ParameterResult right =
      pieces({part(0, 5), part(5, 10), part(10, 15), part(15, 20), part(20, 24, 1)});
  EXPECT_EQ(right.explanation, Explanation::kRight) << right.headline;
  EXPECT_EQ(right.arrangement, "pieces of the flattened tensor, padded with zeros at its end");
  EXPECT_EQ(
      pieces({part(0, 5), part(5, 10), part(10, 15), part(15, 20), part(20, 24, 1, 3)}).explanation,
      Explanation::kShape);
  EXPECT_EQ(pieces({part(0, 5), part(5, 10), part(10, 15), part(15, 20), times(part(20, 24, 1), 2)})
                .explanation,
            Explanation::kSomeRanks);
  EXPECT_EQ(
      pieces({part(5, 10), part(0, 5), part(10, 15), part(15, 20), part(20, 24, 1)}).explanation,
      Explanation::kOtherSlice);
}

// FSDP1 with the original parameters: what lies on one rank alone has its own shape there, and the
// others have None, or do not name it.
TEST(CompareDumps, AFlattenedParameterMayLieOnOneRank) {
  const auto bias = numbers(4, 7);
  const auto compare = [&](std::vector<bool> holds_bias, std::vector<std::vector<float>> weight) {
    Dump reference = reference_8x3(), observed;
    reference.ranks[0].gradients["b"].tensor = sample::vector(bias);
    std::vector<std::optional<DumpTensor>> pieces;
    for (auto& values : weight) pieces.emplace_back(sample::vector(std::move(values)));
    observed = sample::by_rank("w", std::move(pieces));
    for (std::size_t rank = 0; rank < holds_bias.size(); ++rank) {
      DumpGradient& held = observed.ranks[rank].gradients["b"];
      if (holds_bias[rank]) held.tensor = sample::vector(bias);
    }
    const DumpComparison c = compare_dumps(reference, observed, {});
    return c.all_right();
  };
  const std::vector<std::vector<float>> flat = {part(0, 14), part(14, 24), {}, {}};
  EXPECT_TRUE(compare({false, true, false, false}, flat));
  EXPECT_TRUE(
      compare({false, true, false, true}, {part(0, 14), part(14, 24), part(0, 14), part(14, 24)}));
  // Two ranks of one group that hold it are copies, and two others lack it.
  EXPECT_FALSE(compare({true, true, false, false}, flat));
  // Where nothing is flattened None is no gradient.
  EXPECT_FALSE(compare({false, true, false, false}, {truth, truth, truth, truth}));
}

TEST(CompareDumps, AnotherRanksPieceIsNamed) {
  expect(result_of(reference_8x3(), sample::by_rank("w", {rows(truth, 4, 8), rows(truth, 0, 4)})),
         Explanation::kOtherSlice,
         "ranks hold other ranks' pieces: rank 0 the piece of rank 1; rank 1 the piece of rank 0");
}

TEST(CompareDumps, APieceThatNobodyHoldsIsTold) {
  const ParameterResult r =
      result_of(reference_8x3(), sample::by_rank("w", {rows(truth, 0, 4), rows(truth, 0, 4)}));
  expect(
      r, Explanation::kOtherSlice,
      "ranks hold other ranks' pieces: rank 1 the piece of rank 0; no rank holds that of rank 1");
  EXPECT_EQ(advice_of(r), "");
}

TEST(CompareDumps, PiecesThatAreCutOverAnotherAxisAreNamed) {
  const DumpMesh mesh = sample::mesh({{"dp", 2}, {"tp", 2}});
  const auto placed = [&](std::vector<int> pieces) {
    std::vector<std::optional<DumpTensor>> tensors;
    for (const int piece : pieces) tensors.push_back(rows(truth, 4 * piece, 4 * piece + 4));
    Dump observed = sample::by_rank("w", tensors);
    sample::place(observed, "w", mesh, {8, 3},
                  {{Kind::kReplicate, 0, 1, ""}, {Kind::kShard, 0, 1, ""}});
    return result_of(reference_8x3(), observed);
  };
  EXPECT_EQ(placed({0, 1, 0, 1}).explanation, Explanation::kRight);
  expect(placed({0, 0, 1, 1}), Explanation::kOtherSlice,
         "ranks hold other ranks' pieces, as if cut over dp and not over tp: rank 1 the piece of "
         "rank 0; rank 2 the piece of rank 1");
  // Of ranks that all take the first piece nothing says over what they are cut.
  expect(placed({0, 0, 0, 0}), Explanation::kOtherSlice,
         "ranks hold other ranks' pieces: rank 1 the piece of rank 0; rank 3 the piece of rank 0; "
         "no rank holds that of ranks 1, 3");
}

TEST(CompareDumps, ShapesThatFitNowhereAreTold) {
  expect(result_of(reference_8x3(), sample::by_rank("w", {sample::tensor({3, 8}, truth)})),
         Explanation::kShape, "has the shape [3, 8] on rank 0, the reference [8, 3]");
}

TEST(CompareDumps, StridedShardsAreCutAfterTheAxesToTheirRight) {
  // FSDP2 over dp of a tensor that tp cut first: ranks 0 to 3 are (dp, tp) and hold rows 0-1, 4-5,
  // 2-3, 6-7.
  Dump observed = sample::by_rank(
      "w", {rows(truth, 0, 2), rows(truth, 4, 6), rows(truth, 2, 4), rows(truth, 6, 8)});
  const DumpMesh mesh = sample::mesh({{"dp", 2}, {"tp", 2}});
  sample::place(observed, "w", mesh, {8, 3}, {{Kind::kShard, 0, 2, ""}, {Kind::kShard, 0, 1, ""}});
  EXPECT_EQ(result_of(reference_8x3(), observed).explanation, Explanation::kRight);
  sample::place(observed, "w", mesh, {8, 3}, {{Kind::kShard, 0, 1, ""}, {Kind::kShard, 0, 1, ""}});
  EXPECT_EQ(result_of(reference_8x3(), observed).explanation, Explanation::kOtherSlice);
  // As the reference it is joined.
  sample::place(observed, "w", mesh, {8, 3}, {{Kind::kShard, 0, 2, ""}, {Kind::kShard, 0, 1, ""}});
  EXPECT_EQ(result_of(observed, reference_8x3()).explanation, Explanation::kRight);
}

TEST(CompareDumps, PartialSharesAreSummedFirst) {
  const auto share = numbers(kSize, 2);
  std::vector<float> rest;
  for (std::size_t i = 0; i < kSize; ++i) rest.push_back(truth[i] - share[i]);
  Dump observed = sample::by_rank("w", {sample::vector(share), sample::vector(rest)});
  sample::place(observed, "w", sample::mesh({{"tp", 2}}), {kSize}, {{Kind::kPartial, 0, 1, "sum"}});
  const Dump reference = sample::whole("w", sample::vector(truth));
  EXPECT_EQ(result_of(reference, observed).explanation, Explanation::kRight);
  EXPECT_EQ(result_of(observed, reference).explanation, Explanation::kRight);
  sample::place(observed, "w", sample::mesh({{"tp", 2}}), {kSize}, {{Kind::kPartial, 0, 1, "avg"}});
  expect(result_of(reference, observed), Explanation::kScaled,
         "1/2 of the reference (2 = the number of ranks)");
}

TEST(CompareDumps, ANonMemberOfAPipelineIsNotMissing) {
  Dump observed = sample::by_rank("w", {sample::vector(truth), std::nullopt});
  observed.ranks[1].gradients.erase("w");
  observed.ranks[1].lists_all = true;
  EXPECT_EQ(result_of(sample::whole("w", sample::vector(truth)), observed).explanation,
            Explanation::kRight);
}

// --- References ---

TEST(CompareDumps, RankLocalReferencesAreComparedRankByRank) {
  const auto other = numbers(kSize, 2);
  const Dump reference = sample::by_rank("w", {sample::vector(truth), sample::vector(other)});
  EXPECT_EQ(result_of(reference, reference).explanation, Explanation::kRight);
  const Dump swapped = sample::by_rank("w", {sample::vector(other), sample::vector(truth)});
  EXPECT_EQ(result_of(reference, swapped).explanation, Explanation::kOtherSlice);
  EXPECT_EQ(result_of(reference, sample::whole("w", sample::vector(truth))).explanation,
            Explanation::kUnclear);
}

TEST(CompareDumps, AReferenceWhoseCopiesDifferAccusesNobody) {
  Dump reference = sample::by_rank("w", {sample::vector(truth), sample::vector(numbers(kSize, 2))});
  sample::place(reference, "w", sample::mesh({{"dp", 2}}), {kSize}, {{}});
  expect(result_of(reference, sample::whole("w", sample::vector(truth))), Explanation::kUnclear,
         "cannot be judged: in the reference, ranks 0 and 1 hold different values where they "
         "should hold copies");
}

TEST(CompareDumps, NoiseBesideLargeGradientsIsNoMistake) {
  Dump reference = sample::whole("w", sample::vector(truth)), observed = reference;
  reference.ranks[0].gradients["bias"].tensor = sample::vector(times(numbers(kSize, 2), 1e-8f));
  observed.ranks[0].gradients["bias"].tensor = sample::vector(times(numbers(kSize, 3), 1e-8f));
  const DumpComparison c = compare_dumps(reference, observed, {});
  EXPECT_EQ(c.parameters[0].explanation, Explanation::kNoise);
  EXPECT_TRUE(c.all_right());
  observed.ranks[0].gradients["bias"].tensor = sample::vector(times(numbers(kSize, 3), 1e-5f));
  EXPECT_FALSE(compare_dumps(reference, observed, {}).all_right());
}

TEST(CompareDumps, NothingInCommonIsTheUsersError) {
  EXPECT_THROW(compare_dumps(sample::whole("a", sample::vector(truth)),
                             sample::whole("b", sample::vector(truth)), {}),
               UserError);
}

TEST(CompareDumps, EmptyTensorsAreRight) {
  EXPECT_EQ(result_of(sample::whole("w", sample::tensor({0, 3}, {})),
                      sample::by_rank("w", {sample::tensor({0, 3}, {})}))
                .explanation,
            Explanation::kRight);
}

TEST(CompareDumps, APrefixOnOneSideIsProposedAndLeftOut) {
  Dump reference = sample::whole("model.b.w", sample::vector({1, 2, 3}));
  reference.ranks[0].gradients["model.c"].tensor = sample::vector({4, 5});
  Dump observed = sample::by_rank("b.w", {sample::vector({1, 2, 3}), sample::vector({1, 2, 3})});
  for (RankDump& rank : observed.ranks) rank.gradients["c"].tensor = sample::vector({4, 5});
  const auto why = [](const Dump& a, const Dump& b) -> std::string {
    try {
      compare_dumps(a, b, {});
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(why(reference, observed), testing::HasSubstr("--prefix model."));
  EXPECT_THAT(why(observed, reference), testing::HasSubstr("--prefix model."));
  reference.strip_prefix("model.");
  EXPECT_TRUE(compare_dumps(reference, observed, {}).all_right());
  observed.ranks[0].gradients.clear(), observed.ranks[1].gradients.clear();
  observed.ranks[0].gradients["v"].tensor = sample::vector({1, 2, 3});
  EXPECT_THAT(why(reference, observed), testing::Not(testing::HasSubstr("--prefix")));
}

}  // namespace
}  // namespace distgrad::dumps
