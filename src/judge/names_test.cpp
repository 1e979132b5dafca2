// Backwards that were planted, and the name and formula that come of measuring them.
#include "judge/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "judge/closeness.h"
#include "judge/matrix_world.h"

namespace distgrad {
namespace {

using sample::a_call;
using sample::Backward;
using sample::by_coefficients;
using sample::by_pieces;
using sample::MatrixWorld;
using testing::HasSubstr;
using enum CollectiveKind;

MatrixWorld summed(int ranks, Shape shape = {3}) {
  return {ranks, a_call(kAllReduce), shape, shape, by_coefficients([](int, int) { return 1; })};
}
MatrixWorld gathered(int ranks) {
  return {ranks,
          a_call(kAllGather),
          {2},
          {ranks, 2},
          by_pieces(2, 1, ranks, [](int r, int, int, int b) { return b == r; })};
}
MatrixWorld scattered(int ranks) {
  return {ranks,
          a_call(kReduceScatter),
          {2 * ranks},
          {2},
          by_pieces(2, ranks, 1, [](int, int a, int k, int) { return a == k; })};
}
MatrixWorld exchanged(int ranks) {
  return {ranks,
          a_call(kAllToAll),
          {2 * ranks},
          {2 * ranks},
          by_pieces(2, ranks, ranks, [](int r, int a, int k, int b) { return a == k && b == r; })};
}

struct Row {
  const char* what;
  Backward backward;
  const char* finding;
  const char* formula;
};

void expect_each(MatrixWorld world, const std::vector<Row>& rows, const std::string& right) {
  for (const Row& row : rows) {
    const auto found = world.found(row.backward);
    EXPECT_EQ(found.finding, row.finding) << row.what << ": " << found.happened;
    EXPECT_EQ(found.formula, row.formula) << row.what;
    EXPECT_EQ(found.right, right) << row.what;
  }
}

TEST(Names, OfASum) {
  expect_each(
      summed(4),
      {
          {"right", by_coefficients([](int, int) { return 1; }), "", "x̄_r = Σ_k ȳ_k"},
          {"own", by_coefficients([](int r, int k) { return r == k; }), "identity-backward",
           "x̄_r = ȳ_r"},
          {"mean", by_coefficients([](int, int) { return 0.25; }), "scaled", "x̄_r = 1/4 Σ_k ȳ_k"},
          {"twice", by_coefficients([](int, int) { return 4; }), "double-reduction",
           "x̄_r = 4 Σ_k ȳ_k"},
          {"another constant", by_coefficients([](int, int) { return -0.3; }), "scaled",
           "x̄_r = −3/10 Σ_k ȳ_k"},
          {"without rank 2", by_coefficients([](int, int k) { return k != 2; }),
           "missing-reduction", "x̄_r = Σ_{k≠2} ȳ_k"},
          {"others", by_coefficients([](int r, int k) { return r != k; }), "missing-reduction",
           "x̄_r = Σ_{k≠r} ȳ_k"},
          {"own and next", by_coefficients([](int r, int k) { return k == r || k == (r + 1) % 4; }),
           "missing-reduction", "x̄_r = ȳ_r + ȳ_{r+1}"},
          {"up to own", by_coefficients([](int r, int k) { return k <= r; }), "missing-reduction",
           "x̄_r = Σ_{k≤r} ȳ_k"},
          {"nothing", by_coefficients([](int, int) { return 0; }), "no-gradient", "x̄_r = 0"},
          {"own times N", by_coefficients([](int r, int k) { return r == k ? 4 : 0; }),
           "identity-backward", "x̄_r = 4 ȳ_r"},
          {"own times 3", by_coefficients([](int r, int k) { return r == k ? 3 : 0; }),
           "other-backward", "x̄_r = 3 ȳ_r"},
          {"own twice", by_coefficients([](int r, int k) { return r == k ? 2 : 1; }),
           "other-backward", "x̄_r = 2 ȳ_r + Σ_{k≠r} ȳ_k"},
          {"one rank's sign turned", by_coefficients([](int, int k) { return k == 1 ? -1 : 1; }),
           "other-backward", "x̄_r = ȳ_0 − ȳ_1 + ȳ_2 + ȳ_3"},
          {"one rank's result turned", by_coefficients([](int r, int) { return r == 1 ? -1 : 1; }),
           "other-backward", "x̄_r = s_r Σ_k ȳ_k, s = [1, −1, 1, 1]"},
          {"only on some ranks", by_coefficients([](int r, int) { return r != 3; }),
           "missing-reduction", "x̄_r = Σ_k ȳ_k, 0 on rank 3"},
          {"no pattern", by_coefficients([](int r, int k) {
             return r == 0 && k == 2 ? 1.0 / 3 : r == 2 && k == 0 ? -2 : r == k;
           }),
           "other-backward", "x̄_0 = ȳ_0 + 1/3 ȳ_2; x̄_1 = ȳ_1; x̄_2 = −2 ȳ_0 + ȳ_2; x̄_3 = ȳ_3"},
      },
      "x̄_r = Σ_k ȳ_k");
}

TEST(Names, OfAGather) {
  expect_each(
      gathered(3),
      {
          {"own slice",
           by_pieces(2, 1, 3, [](int r, int, int k, int b) { return k == r && b == r; }),
           "own-slice", "x̄_r = ȳ_r[r]"},
          {"next slice",
           by_pieces(2, 1, 3, [](int r, int, int, int b) { return b == (r + 1) % 3; }),
           "wrong-slice", "x̄_r = Σ_k ȳ_k[r+1]"},
          {"first slice", by_pieces(2, 1, 3, [](int, int, int, int b) { return b == 0; }),
           "wrong-slice", "x̄_r = Σ_k ȳ_k[0]"},
          {"each rank's own slices",
           by_pieces(2, 1, 3, [](int, int, int k, int b) { return b == k; }), "wrong-slice",
           "x̄_r = Σ_k ȳ_k[k]"},
          {"all slices", by_pieces(2, 1, 3, [](int, int, int, int) { return 1; }),
           "double-reduction", "x̄_r = Σ_k Σ_b ȳ_k[b]"},
          {"half", by_pieces(2, 1, 3, [](int r, int, int, int b) { return b == r ? 0.5 : 0; }),
           "scaled", "x̄_r = 1/2 Σ_k ȳ_k[r]"},
          {"without rank 1",
           by_pieces(2, 1, 3, [](int r, int, int k, int b) { return b == r && k != 1; }),
           "missing-reduction", "x̄_r = Σ_{k≠1} ȳ_k[r]"},
      },
      "x̄_r = Σ_k ȳ_k[r]");
}

TEST(Names, OfWhatIsCut) {
  expect_each(
      scattered(3),
      {
          {"next", by_pieces(2, 3, 1, [](int, int a, int k, int) { return k == (a + 1) % 3; }),
           "wrong-slice", "x̄_r[a] = ȳ_{a+1}"},
          {"own alone",
           by_pieces(2, 3, 1, [](int r, int a, int k, int) { return k == r && a == r; }),
           "missing-reduction", "x̄_r[r] = ȳ_r, 0 elsewhere"},
          {"times 3", by_pieces(2, 3, 1, [](int, int a, int k, int) { return a == k ? 3 : 0; }),
           "double-reduction", "x̄_r[a] = 3 ȳ_a"},
      },
      "x̄_r[a] = ȳ_a");
  expect_each(exchanged(3),
              {
                  {"not exchanged",
                   by_pieces(2, 3, 3, [](int r, int a, int k, int b) { return k == r && a == b; }),
                   "wrong-slice", "x̄_r[a] = ȳ_r[a]"},
              },
              "x̄_r[a] = ȳ_a[r]");
}

TEST(Names, OfABroadcast) {
  MatrixWorld world(3, a_call(kBroadcast), {2}, {2},
                    by_coefficients([](int r, int) { return r == 0; }));
  expect_each(std::move(world),
              {
                  {"own", by_coefficients([](int r, int k) { return r == k; }), "identity-backward",
                   "x̄_r = ȳ_r"},
                  {"sum to all", by_coefficients([](int, int) { return 1; }), "double-reduction",
                   "x̄_r = Σ_k ȳ_k"},
                  {"root's alone", by_coefficients([](int r, int k) { return r == 0 && k == 0; }),
                   "missing-reduction", "x̄_0 = ȳ_0, 0 on the other ranks"},
                  {"left in the buffer",
                   by_coefficients([](int r, int k) { return r == 0 || k == r ? 1.0 : 0.0; }),
                   "stale-or-aliased", "x̄_0 = ȳ_0 + ȳ_1 + ȳ_2; x̄_1 = ȳ_1; x̄_2 = ȳ_2"},
              },
              "x̄_0 = Σ_k ȳ_k, 0 on the other ranks");
}

TEST(Names, OfOneSourceForAllOtherRanks) {
  MatrixWorld world(3, a_call(kSendRecv), {2}, {2},
                    by_coefficients([](int r, int k) { return r == 0 && k > 0; }));
  expect_each(
      std::move(world),
      {{"the last one's alone", by_coefficients([](int r, int k) { return r == 0 && k == 2; }),
        "missing-reduction", "x̄_0 = ȳ_2, 0 on the other ranks"}},
      "x̄_0 = Σ_{k≠0} ȳ_k, 0 on the other ranks");
}

// Where one number for each pair of pieces does not do, every element is written down.
TEST(Names, OfElementsInAnotherOrder) {
  const Backward rolled = [](const Joint& y) {
    Joint x(y.size(), std::vector<double>(y[0].size(), 0.0));
    for (std::size_t e = 0; e < y[0].size(); ++e)
      for (std::size_t r = 0; r < y.size(); ++r) x[r][(e + 1) % y[0].size()] = y[0][e] + y[1][e];
    return x;
  };
  const auto found = summed(2, {2}).found(rolled);
  EXPECT_EQ(found.formula,
            "x̄_0[0] = ȳ_0[1] + ȳ_1[1]; x̄_0[1] = ȳ_0[0] + ȳ_1[0]; x̄_1[0] = ȳ_0[1] + ȳ_1[1]; x̄_1[1] "
            "= ȳ_0[0] + ȳ_1[0]");
  EXPECT_TRUE(found.coefficients.empty());
}

TEST(Names, OfGroupsThatDoTheSameAsOne) {
  MatrixWorld world(4, a_call(kAllReduce), {2}, {2},
                    by_coefficients([](int r, int k) { return r / 2 == k / 2; }));
  world.program.groups = {{"tp", {{0, 1}, {2, 3}}, false}};
  std::get<CollectiveCall>(world.program.steps[0].what).group = "tp";
  const auto own = world.found(by_coefficients([](int r, int k) { return r == k; }));
  EXPECT_EQ(own.finding, "identity-backward");
  EXPECT_EQ(own.formula, "x̄_r = ȳ_r");
  EXPECT_EQ(own.right, "x̄_r = Σ_k ȳ_k");
  EXPECT_EQ(own.coefficients, (std::vector<std::vector<double>>{{1, 0}, {0, 1}}));
  const auto across = world.found(by_coefficients([](int, int) { return 1; }));
  EXPECT_EQ(across.formula, "x̄_r = Σ_k ȳ_k");
  EXPECT_EQ(across.right, "x̄_0 = ȳ_0 + ȳ_1; x̄_1 = ȳ_0 + ȳ_1; x̄_2 = ȳ_2 + ȳ_3; x̄_3 = ȳ_2 + ȳ_3");
  const auto one_group =
      world.found(by_coefficients([](int r, int k) { return r < 2 ? r / 2 == k / 2 : r == k; }));
  EXPECT_EQ(one_group.finding, "missing-reduction");
  EXPECT_EQ(one_group.formula, "x̄_0 = ȳ_0 + ȳ_1; x̄_1 = ȳ_0 + ȳ_1; x̄_2 = ȳ_2; x̄_3 = ȳ_3");
}

TEST(Names, OfARingThatStopsEarly) {
  MatrixWorld world(5, a_call(kAllReduce), {2}, {2}, by_coefficients([](int, int) { return 1; }));
  const auto after = [](int r, int k) { return (k - r + 5) % 5; };
  const auto one = world.found(by_coefficients([&](int r, int k) { return after(r, k) != 1; }));
  EXPECT_EQ(one.finding, "missing-reduction");
  EXPECT_THAT(one.happened, testing::HasSubstr("the cotangent of the rank after it"));
  EXPECT_THAT(one.happened, testing::HasSubstr("stops one hop early"));
  EXPECT_THAT(one.remedy, testing::HasSubstr("one hop fewer than the group has ranks"));
  const auto two = world.found(by_coefficients([&](int r, int k) { return after(r, k) < 3; }));
  EXPECT_THAT(two.happened, testing::HasSubstr("the cotangents of the 2 ranks before it"));
  EXPECT_THAT(two.happened, testing::HasSubstr("sends to the previous rank stops 2 hops early"));
  // The opposite one of four is no neighbour, and no ring leaves it out.
  MatrixWorld four(4, a_call(kAllReduce), {2}, {2}, by_coefficients([](int, int) { return 1; }));
  const auto opposite =
      four.found(by_coefficients([](int r, int k) { return (k - r + 4) % 4 != 2; }));
  EXPECT_THAT(opposite.happened, testing::HasSubstr("cotangents on every rank"));
  const auto some = four.found(by_coefficients([](int r, int k) { return r == 3 || k != r; }));
  EXPECT_THAT(some.happened, testing::HasSubstr("cotangents on some ranks"));
}

// `if get_rank(group) != src` in a backward, where src is a rank of the world.
TEST(Names, OfARootThatIsMissedInSomeGroups) {
  const auto onto_root = [](int r, int k) { return r % 2 == 0 && r / 2 == k / 2; };
  MatrixWorld world(4, a_call(kBroadcast), {2}, {2}, by_coefficients(onto_root));
  world.program.groups = {{"tp", {{0, 1}, {2, 3}}, false}};
  std::get<CollectiveCall>(world.program.steps[0].what).group = "tp";
  const auto missed =
      world.found(by_coefficients([&](int r, int k) { return r == 0 && onto_root(r, k); }));
  EXPECT_EQ(missed.finding, "missing-reduction");
  EXPECT_THAT(missed.happened, testing::HasSubstr("same number in the group as in the world"));
  EXPECT_THAT(missed.remedy, testing::HasSubstr("get_rank(group)"));
  const auto other =
      world.found(by_coefficients([&](int r, int k) { return r == 2 && onto_root(r, k); }));
  EXPECT_EQ(other.finding, "missing-reduction");
  EXPECT_THAT(other.happened, testing::HasSubstr("lacks the cotangents of ranks 0 and 1"))
      << "the group in which both are the same";
}

// A sum whose backward passes on is right for one loss that all ranks compute; what else passes on
// is right for none.
TEST(Names, OfPassingOnWhatIsRightInstead) {
  const auto own = by_coefficients([](int r, int k) { return r == k; });
  EXPECT_THAT(summed(3, {2}).found(own).right_if, testing::HasSubstr("every rank computes"));
  const auto of = [&](CollectiveKind kind, ReduceOp op, int root_of_right) {
    MatrixWorld world(3, a_call(kind, op), {2}, {2}, by_coefficients([&](int r, int k) {
                        return kind == kBroadcast ? r == root_of_right : k == root_of_right;
                      }));
    return world.found(own);
  };
  const auto broadcast = of(kBroadcast, ReduceOp::kSum, 0);
  EXPECT_EQ(broadcast.finding, "identity-backward");
  EXPECT_EQ(broadcast.right_if, "");
  EXPECT_THAT(broadcast.remedy, testing::HasSubstr("onto the source"));
  const auto to_all = MatrixWorld(3, a_call(kBroadcast), {2}, {2},
                                  by_coefficients([](int r, int) { return r == 0; }))
                          .found(by_coefficients([](int, int) { return 1.0; }));
  EXPECT_EQ(to_all.finding, "double-reduction");
  EXPECT_THAT(to_all.happened, testing::HasSubstr("which the source alone is due"));
  EXPECT_THAT(to_all.remedy, testing::HasSubstr("Return zeros"));
  const auto reduce = of(kReduce, ReduceOp::kSum, 0);
  EXPECT_EQ(reduce.finding, "identity-backward");
  EXPECT_EQ(reduce.right_if, "");
  EXPECT_THAT(reduce.remedy, testing::HasSubstr("Broadcast root's cotangent"));
  EXPECT_THAT(reduce.happened, testing::HasSubstr("where root's alone counts"));
  MatrixWorld world(3, a_call(kReduce, ReduceOp::kSum), {2}, {2},
                    by_coefficients([](int, int k) { return k == 0; }));
  const auto kept = world.found(by_coefficients([](int r, int k) { return r == 0 && k == 0; }));
  EXPECT_EQ(kept.finding, "missing-reduction");
  EXPECT_EQ(kept.happened, "gave root its cotangent, and the other ranks nothing.");
}

// The gather of which each rank keeps its own slice, as it is or multiplied.
TEST(Names, OfAnOwnSliceThatIsMultiplied) {
  MatrixWorld world = gathered(3);
  const auto of = [&](double times) {
    return world.found(
        by_pieces(2, 1, 3, [&](int r, int, int k, int b) { return b == r && k == r ? times : 0; }));
  };
  EXPECT_EQ(of(1).finding, "own-slice");
  EXPECT_THAT(of(1).right_if, testing::StartsWith("the loss is one loss"));
  EXPECT_EQ(of(3).finding, "own-slice");
  EXPECT_THAT(of(3).happened, testing::HasSubstr("saw, multiplied it by the group's size, and"));
  EXPECT_THAT(of(3).right_if, testing::HasSubstr("their sum counts"));
  EXPECT_EQ(of(0.5).finding, "own-slice");
  EXPECT_THAT(of(0.5).happened, testing::HasSubstr("multiplied it by 0.5"));
  EXPECT_EQ(of(0.5).right_if, "");
}

// Of a gather whose backward reduces over a group that is not the call's, and then cuts.
TEST(Names, OfAnotherGroupsRanks) {
  MatrixWorld world = gathered(4);
  world.program.groups = {{"tp", {{0, 1}, {2, 3}}, false}};
  const auto of = [&](const std::function<bool(int r, int k)>& counts) {
    return world
        .found(by_pieces(2, 1, 4, [&](int r, int, int k, int b) { return b == r && counts(r, k); }))
        .finding;
  };
  EXPECT_EQ(of([](int r, int k) { return r / 2 == k / 2; }), "wrong-group");
  EXPECT_EQ(of([](int r, int k) { return r % 2 == k % 2; }), "missing-reduction");
  EXPECT_EQ(of([](int, int) { return true; }), "");
  const auto weighted = by_pieces(
      2, 1, 4, [](int r, int, int k, int b) { return b == r && r / 2 == k / 2 ? 1 + k : 0; });
  EXPECT_EQ(world.found(weighted).finding, "other-backward");
}

// The backward of a gather in groups of two reduces over the world.
TEST(Names, OfTheWorldsRanksInPlaceOfAGroups) {
  MatrixWorld world(
      4, a_call(kAllGather), {2}, {2, 2},
      by_pieces(2, 1, 2, [](int r, int, int k, int b) { return r / 2 == k / 2 && b == r % 2; }));
  world.program.groups = {{"tp", {{0, 1}, {2, 3}}, false}};
  std::get<CollectiveCall>(world.program.steps[0].what).group = "tp";
  const auto found =
      world.found(by_pieces(2, 1, 2, [](int r, int, int, int b) { return b == r % 2; }));
  EXPECT_EQ(found.finding, "wrong-group");
  EXPECT_THAT(found.happened, HasSubstr("counted the cotangents of all ranks, instead of"));
  const auto but_one =
      by_pieces(2, 1, 2, [](int r, int, int k, int b) { return b == r % 2 && (r != 3 || k != 0); });
  EXPECT_EQ(world.found(but_one).finding, "wrong-slice");
}

TEST(Names, CoefficientsAreRelativeToWhatIsRight) {
  MatrixWorld world(4, a_call(kAllReduce, ReduceOp::kAvg), {2}, {2},
                    by_coefficients([](int, int) { return 0.25; }));
  EXPECT_EQ(world.found(by_coefficients([](int, int) { return 1; })).finding, "forgotten-op");
  const auto own = world.found(by_coefficients([](int r, int k) { return r == k; }));
  EXPECT_EQ(own.finding, "identity-backward");
  EXPECT_EQ(own.right_if, "");
  EXPECT_EQ(own.coefficients[1], (std::vector<double>{0, 4, 0, 0}));
}

TEST(Names, OfAMeanThatDividesByTheWorldsSize) {
  const auto of = [](int ranks, int split) {
    const auto group_of = [=](int rank) { return rank < split ? 0 : 1; };
    MatrixWorld world(ranks, a_call(kAllReduce, ReduceOp::kAvg), {2}, {2},
                      by_coefficients([=](int r, int k) {
                        const double size = r < split ? split : ranks - split;
                        return group_of(r) == group_of(k) ? 1 / size : 0;
                      }));
    std::vector<std::vector<int>> lists(2);
    for (int r = 0; r < ranks; ++r) lists[static_cast<std::size_t>(group_of(r))].push_back(r);
    world.program.groups = {{"tp", lists, false}};
    std::get<CollectiveCall>(world.program.steps[0].what).group = "tp";
    return world.found(by_coefficients(
        [=](int r, int k) { return group_of(r) == group_of(k) ? 1.0 / ranks : 0; }));
  };
  EXPECT_EQ(of(5, 3).finding, "scaled");
  EXPECT_EQ(of(5, 3).happened, "divided by the world's size, and not by the group's.");
  EXPECT_EQ(of(4, 2).finding, "scaled");
  EXPECT_THAT(of(4, 2).happened, HasSubstr("once more, or by the world's size in place of the"));
}

// The report's matrices, made of the blocks' numbers, are those that were planted.
TEST(Names, MatricesAreThoseOfTheBackward) {
  MatrixWorld world = summed(2, {2});
  world.found(by_coefficients([](int r, int k) { return r == k ? 2 : 0.5; }));
  ASSERT_TRUE(world.matrices);
  EXPECT_EQ(world.matrices->rows, (std::vector<int>{2, 2}));
  EXPECT_EQ(world.matrices->measured,
            (std::vector<double>{2, 0, 0.5, 0, 0, 2, 0, 0.5, 0.5, 0, 2, 0, 0, 0.5, 0, 2}));
  EXPECT_EQ(world.matrices->right,
            (std::vector<double>{1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1}));
  MatrixWorld pieces = gathered(2);
  pieces.found(by_pieces(2, 1, 2, [](int r, int, int k, int b) { return b != r && k == 0; }));
  EXPECT_EQ(pieces.matrices->measured,
            (std::vector<double>{0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
                                 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
}

// --- Products, extrema ---

MatrixWorld multiplied(const std::function<double(int, int)>& value) {
  const auto others = [value](int r, std::size_t e) {
    double product = 1;
    for (int k = 0; k < 3; ++k)
      if (k != r) product *= value(k, static_cast<int>(e));
    return product;
  };
  return {3,
          a_call(kAllReduce, ReduceOp::kProduct),
          {2},
          {2},
          [others](const Joint& y) {
            Joint x = y;
            for (std::size_t r = 0; r < 3; ++r)
              for (std::size_t e = 0; e < 2; ++e)
                x[r][e] = others(static_cast<int>(r), e) * (y[0][e] + y[1][e] + y[2][e]);
            return x;
          },
          value};
}

TEST(Names, OfAProduct) {
  const auto value = [](int r, int e) { return r == 1 && e == 1 ? 0.0 : r + e + 2.0; };
  const auto product = [value](std::size_t e) {
    return value(0, static_cast<int>(e)) * value(1, static_cast<int>(e)) *
           value(2, static_cast<int>(e));
  };
  MatrixWorld world = multiplied(value);
  const auto by_division = world.found([&](const Joint& y) {
    Joint x = y;
    for (std::size_t r = 0; r < 3; ++r)
      for (std::size_t e = 0; e < 2; ++e)
        x[r][e] = (y[0][e] + y[1][e] + y[2][e]) * product(e) /
                  value(static_cast<int>(r), static_cast<int>(e));
    return x;
  });
  EXPECT_EQ(by_division.finding, "zero-input");
  EXPECT_EQ(by_division.right, "x̄_r = d_r Σ_k ȳ_k, d_r = ∏_{j≠r} x_j");
  const auto same_op = world.found([](const Joint& y) {
    Joint x = y;
    for (auto& of_rank : x)
      for (std::size_t e = 0; e < 2; ++e) of_rank[e] = y[0][e] * y[1][e] * y[2][e];
    return x;
  });
  EXPECT_EQ(same_op.finding, "same-op-backward");
  EXPECT_FALSE(same_op.linear);
  EXPECT_EQ(world.found(by_coefficients([](int r, int k) { return r == k; })).finding,
            "identity-backward");
  EXPECT_EQ(world.found(by_coefficients([](int, int) { return 1; })).finding, "forgotten-op");
  // If nothing but a zero has a derivative, nothing tells its loss from that of the whole gradient.
  MatrixWorld zeros = multiplied([](int r, int e) { return r == 1 ? 0.0 : r + e + 2.0; });
  const auto nothing = zeros.found(by_coefficients([](int, int) { return 0; }));
  EXPECT_EQ(nothing.finding, "zero-input");
  EXPECT_THAT(nothing.happened, HasSubstr("or where the call is cut off from the graph"));
  EXPECT_EQ(world.found(by_coefficients([](int, int) { return 0; })).finding, "no-gradient");
}

// Of products that are scattered: the derivative is the target's, whichever cotangent it is applied
// to.
TEST(Names, OfAScatteredProduct) {
  const auto by = [](const std::function<std::size_t(std::size_t a)>& source,
                     double (*round)(double)) {
    return [=](const Joint& y) {
      Joint x(3, std::vector<double>(6, 0.0));
      for (std::size_t r = 0; r < 3; ++r)
        for (std::size_t e = 0; e < 6; ++e)
          x[r][e] = round((0.3 + 7.0 * static_cast<double>(r + e)) / 3 * y[source(e / 2)][e % 2]);
      return x;
    };
  };
  const auto as_it_is = [](double v) { return v; };
  const auto due = [](std::size_t a) { return a; };
  MatrixWorld world(3, a_call(kReduceScatter, ReduceOp::kProduct), {6}, {2}, by(due, as_it_is));
  const auto next = world.found(by([](std::size_t a) { return (a + 1) % 3; }, as_it_is));
  EXPECT_EQ(next.finding, "wrong-slice");
  EXPECT_EQ(next.formula, "x̄_r[a] = d_r ȳ_{a+1}, d_r = ∏_{j≠r} x_j");
  ASSERT_TRUE(
      world.matrices);  // row 0: rank 0's element 0, from rank 1's element 0, the third column
  EXPECT_NEAR(world.matrices->measured[2], 0.1, 1e-12);
  EXPECT_EQ(world.matrices->measured[0], 0);
  EXPECT_EQ(world.matrices->right[2], 0);
  // Numbers that were rounded themselves: no cotangent is answered rightly.
  const auto rounded =
      world.found(by(due, [](double v) { return rounded_to(DType::kFloat16, v); }));
  EXPECT_EQ(rounded.finding, "precision");
  EXPECT_THAT(rounded.happened, HasSubstr("float16"));
  const auto scaled = world.found(by(due, [](double v) { return v * 0.9995; }));
  EXPECT_EQ(scaled.finding, "scaled");
}

TEST(Names, OfATie) {
  // The maximum: at element 0 rank 2's, at element 1 ranks 0 and 1 tie.
  const auto value = [](int r, int e) { return e == 0 ? r : (r < 2 ? 5.0 : 1.0); };
  const auto share = [](std::size_t r, std::size_t e, double at_tie) {
    return e == 0 ? r == 2 : r < 2 ? at_tie : 0.0;
  };
  const auto backward = [share](double at_tie) {
    return [=](const Joint& y) {
      Joint x = y;
      for (std::size_t r = 0; r < 3; ++r)
        for (std::size_t e = 0; e < 2; ++e)
          x[r][e] = share(r, e, at_tie) * (y[0][e] + y[1][e] + y[2][e]);
      return x;
    };
  };
  MatrixWorld world(3, a_call(kAllReduce, ReduceOp::kMax), {2}, {2}, backward(0.5), value);
  EXPECT_EQ(world.found(backward(1)).finding, "tie");
  EXPECT_EQ(world.found(backward(0.5)).finding, "");
  // A tie of two ranks of three at every element makes all shares twice the right ones.
  const auto of_two = [](double share) {
    return by_coefficients([=](int r, int) { return r == 0 ? 0 : share; });
  };
  MatrixWorld two(3, a_call(kAllReduce, ReduceOp::kMax), {2}, {2}, of_two(0.5),
                  [](int r, int) { return r == 0 ? 0.0 : 2.0; });
  EXPECT_EQ(two.found(of_two(1)).finding, "tie");
}

// Of a sum's backward nothing else is wrong where everything ties.
TEST(Names, OfATieEverywhere) {
  for (const CollectiveKind kind : {kAllReduce, kReduce}) {
    const auto due = [kind](double share) {
      return by_coefficients([=](int, int k) { return kind == kReduce && k != 0 ? 0 : share; });
    };
    const auto world = [&](double apart) {
      return MatrixWorld(3, a_call(kind, ReduceOp::kMax), {2}, {2}, due(1. / 3),
                         [apart](int r, int e) { return e + apart * r; });
    };
    EXPECT_EQ(world(0).found(due(1)).finding, "tie") << traits(kind).name;
    EXPECT_EQ(world(1).found(due(1)).finding, "forgotten-op") << traits(kind).name;
    EXPECT_EQ(world(0).found(due(0)).finding, "no-gradient") << traits(kind).name;
  }
}

// --- Not linear, not repeatable ---

TEST(Names, OfANarrowerDtype) {
  for (const auto& [dtype, name] : {std::pair{DType::kFloat32, "float32"},
                                    {DType::kBFloat16, "bfloat16"},
                                    {DType::kFloat16, "float16"}}) {
    const auto rounded = [dtype = dtype](const Joint& y) {
      Joint x(y.size(), std::vector<double>(y[0].size(), 0.0));
      for (std::size_t e = 0; e < y[0].size(); ++e)
        for (std::size_t r = 0; r < y.size(); ++r)
          for (std::size_t k = 0; k < y.size(); ++k)
            x[r][e] = rounded_to(dtype, x[r][e] + rounded_to(dtype, y[k][e]));
      return x;
    };
    const auto found = summed(3).found(rounded);
    EXPECT_EQ(found.finding, "precision") << name;
    EXPECT_THAT(found.happened, HasSubstr(name));
  }
}

TEST(Names, OfWhatIsNotLinear) {
  const auto found = summed(3).found([](const Joint& y) {
    Joint x = y;
    for (auto& of_rank : x)
      for (std::size_t e = 0; e < of_rank.size(); ++e)
        of_rank[e] = std::abs(y[0][e] + y[1][e] + y[2][e]);
    return x;
  });
  EXPECT_EQ(found.finding, "other-backward");
  EXPECT_THAT(found.formula, HasSubstr("not linear: a cotangent times -3 is answered with"));
  const auto shifted = summed(3).found([](const Joint& y) {
    Joint x = by_coefficients([](int, int) { return 1; })(y);
    x[1][2] += 7;
    return x;
  });
  EXPECT_THAT(
      shifted.formula,
      HasSubstr(
          "a cotangent of zeros is answered with 7 where it should be 0 (rank 1, element 2)"));
}

TEST(Names, OfWhatDependsOnTheCallsBefore) {
  double last = 0;
  const auto found = summed(3).found([&last](const Joint& y) {
    Joint x = by_coefficients([](int, int) { return 1; })(y);
    x[0][0] += last;
    last = y[0][0];
    return x;
  });
  EXPECT_EQ(found.finding, "stale-or-aliased");
  int count = 0;
  const auto random = summed(3).found([&count](const Joint& y) {
    Joint x = by_coefficients([](int, int) { return 1; })(y);
    x[0][0] += ++count;
    return x;
  });
  EXPECT_EQ(random.finding, "nondeterministic");
}

// Of many elements each piece is tried by itself, and not each element.
TEST(Names, OfALargeCall) {
  MatrixWorld world = summed(3, {200});
  const auto found = world.found(by_coefficients([](int r, int k) {
    return r == k ? 3 : k < r ? 0.5 : 0;
  }));
  EXPECT_EQ(found.finding, "other-backward");
  EXPECT_EQ(found.formula, "x̄_0 = 3 ȳ_0; x̄_1 = 1/2 ȳ_0 + 3 ȳ_1; x̄_2 = 1/2 ȳ_0 + 1/2 ȳ_1 + 3 ȳ_2");
  EXPECT_EQ(found.coefficients[2], (std::vector<double>{0.5, 0.5, 3}));
}

}  // namespace
}  // namespace distgrad
