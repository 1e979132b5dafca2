#include "judge/assemble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "judge/sample_programs.h"
#include "model/element_index.h"

namespace distgrad {
namespace {

using sample::input;
using sample::kInvariant;
using sample::kLocal;
using sample::kReplicate;
using sample::matrix;
using sample::scalars;
using sample::shard;
using sample::values_of;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<double> numbers(int n, double first = 0) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// What each rank holds of a full tensor along these shards, by the definition: one chunk after
// another.
Array chunk(const Array& full, int dim, int size, int index) {
  Shape start(full.shape().size(), 0), extent = full.shape();
  const std::int64_t n = extent[static_cast<std::size_t>(dim)], each = (n + size - 1) / size;
  start[static_cast<std::size_t>(dim)] = std::min<std::int64_t>(index * each, n);
  extent[static_cast<std::size_t>(dim)] = std::min(each, n - start[static_cast<std::size_t>(dim)]);
  return box_of(full, start, extent);
}

TEST(Assemble, LocalGradientsStandAloneAndShareTheirElements) {
  const GradientByRank held = {Array::scalar(1), std::nullopt, sample::vector({1, 2})};
  const auto parts = assemble(sample::world(3), input("x", kLocal), {}, held);
  ASSERT_EQ(parts.size(), 3);
  EXPECT_EQ(parts[0].value->values().data(), held[0]->values().data());
  EXPECT_FALSE(parts[1].value);
  EXPECT_THAT(parts[1].missing, ElementsAre(1));
  EXPECT_TRUE(parts[1].lacks_a_piece);
  EXPECT_EQ(parts[2].value->shape(), Shape{2});
}

TEST(Assemble, AReplicatedGradientIsTheSumOverTheRanks) {
  const auto parts = assemble(sample::world(3), input("w", kReplicate), {}, scalars({1, 20, 300}));
  ASSERT_EQ(parts.size(), 1);
  EXPECT_THAT(values_of(*parts[0].value), ElementsAre(321));
  EXPECT_THAT(parts[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_TRUE(parts[0].is_sum);
}

TEST(Assemble, TheSumOfManyRanksIsRoundedOnce) {
  GradientByRank held = scalars({1e16, 1, 1, 1, 1, -1e16});
  const auto parts = assemble(sample::world(6), input("w", kReplicate), {}, held);
  EXPECT_THAT(values_of(*parts[0].value), ElementsAre(4));
}

TEST(Assemble, SumsLongTensorsAndInfinities) {
  const std::vector<double> a = numbers(5000), b = numbers(5000, 7);
  GradientByRank held = {sample::vector(a), sample::vector(b)};
  const auto parts = assemble(sample::world(2), input("w", kReplicate), {5000}, held);
  EXPECT_EQ((*parts[0].value)[0], 7);
  EXPECT_EQ((*parts[0].value)[4999], 4999 + 4999 + 7);
  const double inf = std::numeric_limits<double>::infinity();
  held = scalars({inf, 1});
  EXPECT_EQ((*assemble(sample::world(2), input("w", kReplicate), {}, held)[0].value)[0], inf);
}

TEST(Assemble, WithSyncEachRankHoldsTheWhole) {
  Input w = input("w", kReplicate);
  w.sync = {{"", Input::Sync::kMean}};
  const auto parts = assemble(sample::world(3), w, {}, scalars({5, 6, 7}));
  ASSERT_EQ(parts.size(), 3);
  EXPECT_THAT(values_of(*parts[2].value), ElementsAre(7));
  EXPECT_THAT(parts[2].ranks, ElementsAre(2));
  EXPECT_FALSE(parts[2].is_sum);
}

TEST(Assemble, AnInvariantGradientStandsOnEachRankWithAMeshToo) {
  const Program program = sample::mesh({{"dp", 2}, {"tp", 2}});
  EXPECT_EQ(assemble(program, input("w", kInvariant), {}, scalars({1, 2, 3, 4})).size(), 4);
  EXPECT_EQ(assemble(sample::world(3), input("w", kInvariant), {}, scalars({1, 2, 3})).size(), 3);
}

class Sharded : public testing::TestWithParam<std::pair<int, int>> {};  // rows, ranks

TEST_P(Sharded, PiecesAreJoinedAsChunkCuts) {
  const auto [rows, ranks] = GetParam();
  const Array full = matrix(rows, 3, numbers(rows * 3));
  for (const int dim : {0, -2}) {
    GradientByRank held;
    for (int r = 0; r < ranks; ++r) held.emplace_back(chunk(full, 0, ranks, r));
    const auto parts = assemble(sample::world(ranks), input("w", shard(dim)), full.shape(), held);
    ASSERT_EQ(parts.size(), 1);
    EXPECT_THAT(parts[0].misshapen, IsEmpty());
    EXPECT_EQ(values_of(*parts[0].value), values_of(full));
  }
  const Array wide = matrix(2, rows, numbers(rows * 2));
  GradientByRank held;
  for (int r = 0; r < ranks; ++r) held.emplace_back(chunk(wide, 1, ranks, r));
  const auto parts = assemble(sample::world(ranks), input("w", shard(1)), wide.shape(), held);
  EXPECT_EQ(values_of(*parts[0].value), values_of(wide));
}

// 5 rows over 4 ranks: 2, 2, 1, 0; 3 over 7: 1, 1, 1 and four empty ones.
INSTANTIATE_TEST_SUITE_P(Sizes, Sharded,
                         testing::Values(std::pair(4, 2), std::pair(5, 3), std::pair(5, 4),
                                         std::pair(3, 7), std::pair(1, 1), std::pair(0, 3)));

TEST(Assemble, APieceWithoutElementsNeedsNoGradient) {
  const Array full = sample::vector({1, 2, 3});
  GradientByRank held = {sample::vector({1, 2}), sample::vector({3}), std::nullopt};
  const auto parts = assemble(sample::world(3), input("w", shard(0)), {3}, held);
  // 3 elements over 3 ranks are one each: the shapes do not fit.
  EXPECT_THAT(parts[0].misshapen, ElementsAre(0));
  held = {sample::vector({1}), sample::vector({2}), sample::vector({}), std::nullopt};
  const auto four = assemble(sample::world(4), input("w", shard(0)), {2}, held);
  EXPECT_THAT(four[0].missing, IsEmpty());
  EXPECT_FALSE(four[0].lacks_a_piece);
  EXPECT_THAT(values_of(*four[0].value), ElementsAre(1, 2));
}

TEST(Assemble, AMissingShareOfASumCountsAsNothingAMissingPieceIsToldApart) {
  const GradientByRank held = {Array::scalar(2), std::nullopt, Array::scalar(3)};
  const auto sum = assemble(sample::world(3), input("w", kReplicate), {}, held);
  EXPECT_THAT(values_of(*sum[0].value), ElementsAre(5));
  EXPECT_THAT(sum[0].missing, ElementsAre(1));
  EXPECT_FALSE(sum[0].lacks_a_piece);

  const GradientByRank pieces = {sample::vector({2}), std::nullopt};
  const auto joined = assemble(sample::world(2), input("w", shard(0)), {2}, pieces);
  EXPECT_THAT(values_of(*joined[0].value), ElementsAre(2, 0));
  EXPECT_TRUE(joined[0].lacks_a_piece);

  const auto none =
      assemble(sample::world(2), input("w", kReplicate), {}, {std::nullopt, std::nullopt});
  EXPECT_FALSE(none[0].value);
  EXPECT_TRUE(none[0].lacks_a_piece);
}

TEST(Assemble, OneAxisSummedAndOneJoined) {
  const Program program = sample::mesh({{"dp", 2}, {"tp", 3}});
  const Input w = input("w", {{"dp", kReplicate}, {"tp", shard(0)}});
  const GradientByRank held = {sample::vector({1, 2}),   sample::vector({3, 4}),
                               sample::vector({5}),      sample::vector({10, 20}),
                               sample::vector({30, 40}), sample::vector({50})};
  const auto parts = assemble(program, w, {5}, held);
  ASSERT_EQ(parts.size(), 1);
  EXPECT_THAT(values_of(*parts[0].value), ElementsAre(11, 22, 33, 44, 55));
  EXPECT_EQ(parts[0].holder_of({1}), 0);
  EXPECT_EQ(parts[0].holder_of({4}), 2);

  Input synced = w;
  synced.sync = {{"dp", Input::Sync::kSum}};
  const auto by_coordinate = assemble(program, synced, {5}, held);
  ASSERT_EQ(by_coordinate.size(), 2);
  EXPECT_THAT(values_of(*by_coordinate[1].value), ElementsAre(10, 20, 30, 40, 50));
  EXPECT_THAT(by_coordinate[1].ranks, ElementsAre(3, 4, 5));
  EXPECT_EQ(by_coordinate[1].holder_of({4}), 5);
}

TEST(Assemble, NestedShardsOfOneDimCutInMeshOrder) {
  // 7 over dp=2: 4 and 3; over tp=3: 2, 2, 0 and 1, 1, 1.
  const Program program = sample::mesh({{"dp", 2}, {"tp", 3}});
  const Input w = input("w", {{"dp", shard(0)}, {"tp", shard(0)}});
  const GradientByRank held = {sample::vector({0, 1}), sample::vector({2, 3}), sample::vector({}),
                               sample::vector({4}),    sample::vector({5}),    sample::vector({6})};
  const auto parts = assemble(program, w, {7}, held);
  EXPECT_THAT(parts[0].misshapen, IsEmpty());
  EXPECT_EQ(values_of(*parts[0].value), numbers(7));
}

TEST(Assemble, ShardsOfTwoDimsTileTheMatrix) {
  const Program program = sample::mesh({{"dp", 2}, {"tp", 2}});
  const Array full = matrix(3, 5, numbers(15));
  GradientByRank held;
  for (int dp = 0; dp < 2; ++dp)
    for (int tp = 0; tp < 2; ++tp) held.emplace_back(chunk(chunk(full, 0, 2, dp), 1, 2, tp));
  const auto parts =
      assemble(program, input("w", {{"dp", shard(0)}, {"tp", shard(1)}}), full.shape(), held);
  EXPECT_EQ(values_of(*parts[0].value), values_of(full));
  EXPECT_EQ(parts[0].holder_of({2, 4}), 3);
}

TEST(Assemble, AShardOfTheWholeWorldIgnoresTheMesh) {
  const Program program = sample::mesh({{"dp", 2}, {"tp", 2}});
  const GradientByRank held = {sample::vector({1, 2}), sample::vector({3, 4}), sample::vector({5}),
                               sample::vector({})};
  // 5 over 4 ranks: 2, 2, 1, 0.
  const auto parts = assemble(program, input("w", shard(0)), {5}, held);
  EXPECT_THAT(values_of(*parts[0].value), ElementsAre(1, 2, 3, 4, 5));
}

TEST(Assemble, OneAxisInvariantAndOneSummed) {
  const Program program = sample::mesh({{"dp", 2}, {"tp", 2}});
  const Input w = input("w", {{"dp", kReplicate}, {"tp", kInvariant}});
  const auto parts = assemble(program, w, {}, scalars({1, 2, 30, 40}));
  ASSERT_EQ(parts.size(), 2);
  EXPECT_THAT(values_of(*parts[0].value), ElementsAre(31));
  EXPECT_THAT(values_of(*parts[1].value), ElementsAre(42));
  EXPECT_THAT(parts[1].ranks, ElementsAre(1, 3));
}

TEST(Synchronised, AddsOrAveragesAlongItsAxisOnly) {
  const Program program = sample::mesh({{"dp", 2}, {"tp", 2}});
  Input w = input("w", {{"dp", kReplicate}, {"tp", kReplicate}});
  w.sync = {{"dp", Input::Sync::kMean}};
  const GradientByRank after = synchronised(program, w, scalars({1, 2, 3, 6}));
  EXPECT_THAT(values_of(*after[0]), ElementsAre(2));
  EXPECT_THAT(values_of(*after[1]), ElementsAre(4));
  EXPECT_THAT(values_of(*after[2]), ElementsAre(2));
  EXPECT_THAT(values_of(*after[3]), ElementsAre(4));
  w.sync.push_back({"tp", Input::Sync::kSum});
  EXPECT_THAT(values_of(*synchronised(program, w, scalars({1, 2, 3, 6}))[3]), ElementsAre(6));
}

TEST(Synchronised, MissingGradientsCountAsNothing) {
  Input w = input("w", kReplicate);
  w.sync = {{"", Input::Sync::kMean}};
  const GradientByRank after = synchronised(sample::world(2), w, {std::nullopt, Array::scalar(3)});
  EXPECT_THAT(values_of(*after[0]), ElementsAre(1.5));
  EXPECT_FALSE(synchronised(sample::world(2), w, {std::nullopt, std::nullopt})[1]);
}

TEST(LayoutText, IsAsTheReportSpellsIt) {
  EXPECT_EQ(layout_text(input("x", kLocal)), "local");
  EXPECT_EQ(layout_text(input("x", shard(-1))), "shard:-1");
  EXPECT_EQ(layout_text(input("x", {{"dp", kReplicate}, {"tp", shard(0)}})),
            "dp=replicate,tp=shard:0");
}

TEST(IndexOfElement, IsRowMajor) {
  EXPECT_THAT(index_of({2, 3}, 5), ElementsAre(1, 2));
  EXPECT_THAT(index_of({}, 0), IsEmpty());
}

}  // namespace
}  // namespace distgrad
