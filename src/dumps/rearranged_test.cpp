// Pieces that are sums of other ranks' pieces, and rows in another order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dumps/compare_dumps.h"
#include "dumps/sample_dumps.h"

namespace distgrad::dumps {
namespace {

using sample::numbers;
using sample::plus;
using sample::times;
using testing::HasSubstr;
using testing::Not;
using Kind = DumpPlacement::Kind;

constexpr std::size_t kRows = 6, kColumns = 5;
const std::vector<float> table = numbers(kRows * kColumns, 1);

ParameterResult compared(const Dump& observed, const std::vector<float>& wanted = table) {
  const Dump reference = sample::whole("w", sample::tensor({kRows, kColumns}, wanted));
  return compare_dumps(reference, observed, {}).parameters.at(0);
}

// Rows of the table, in this order.
std::vector<float> rows(const std::vector<std::size_t>& order) {
  std::vector<float> values;
  for (const std::size_t row : order)
    values.insert(values.end(), table.begin() + static_cast<std::ptrdiff_t>(row * kColumns),
                  table.begin() + static_cast<std::ptrdiff_t>((row + 1) * kColumns));
  return values;
}

// On a mesh of dp and tp (3 ranks), cut over tp.
Dump pieces(const std::vector<std::vector<float>>& by_rank) {
  std::vector<std::optional<DumpTensor>> tensors;
  for (const auto& values : by_rank) tensors.emplace_back(sample::tensor({2, kColumns}, values));
  Dump dump = sample::by_rank("w", std::move(tensors));
  const auto dp = static_cast<int>(by_rank.size() / 3);
  sample::place(dump, "w", sample::mesh({{"dp", dp}, {"tp", 3}}), {kRows, kColumns},
                {{Kind::kReplicate, 0, 1, ""}, {Kind::kShard, 0, 1, ""}});
  return dump;
}

TEST(Rearranged, PiecesReducedOverTheAxisThatCutsThemAreNamed) {
  const std::vector<float> sum = plus(plus(rows({0, 1}), rows({2, 3})), rows({4, 5}));
  const ParameterResult r = compared(pieces(std::vector<std::vector<float>>(6, times(sum, 0.5f))));
  EXPECT_EQ(r.explanation, Explanation::kSummedParts) << r.headline;
  EXPECT_EQ(r.finding.text(), "wrong-group");
  EXPECT_EQ(r.axis, "tp");
  EXPECT_THAT(r.headline, HasSubstr("0.5 times the sum over the ranks of tp of the pieces"));
}

TEST(Rearranged, CopiesCountOnceInASumOfPieces) {
  const std::vector<float> sum = plus(plus(rows({0, 1}), rows({2, 3})), rows({4, 5}));
  Dump dump = pieces(std::vector<std::vector<float>>(6, times(sum, 0.5f)));
  for (RankDump& rank : dump.ranks) {
    rank.meshes.clear();
    rank.gradients["w"].layout.reset();
  }
  EXPECT_THAT(
      compared(dump).headline,
      HasSubstr("0.5 times the sum over all ranks of the pieces that they should hold, each "
                "piece once"));
}

TEST(Rearranged, ASumOfSomePiecesIsNotThatOfAll) {
  const std::vector<float> sum = plus(rows({0, 1}), rows({2, 3}));
  const ParameterResult r = compared(pieces(std::vector<std::vector<float>>(3, sum)));
  EXPECT_EQ(r.explanation, Explanation::kUnexplained) << r.headline;
}

// Four numbers a piece tell nothing by themselves.
TEST(Rearranged, AFewNumbersAreTheSumThatOthersShow) {
  const std::vector<float> sum = plus(plus(rows({0, 1}), rows({2, 3})), rows({4, 5}));
  const std::vector<float> bias = numbers(12, 7);
  const auto piece = [&](std::ptrdiff_t at) {
    return std::vector<float>(bias.begin() + 4 * at, bias.begin() + 4 * at + 4);
  };
  const auto found = [&](float of_table, float of_bias) {
    Dump reference = sample::whole("w", sample::tensor({kRows, kColumns}, table));
    reference.ranks[0].gradients["bias"].tensor = sample::vector(bias);
    Dump dump = pieces(std::vector<std::vector<float>>(3, times(sum, of_table)));
    for (RankDump& rank : dump.ranks)
      rank.gradients["bias"].tensor =
          sample::vector(times(plus(plus(piece(0), piece(1)), piece(2)), of_bias));
    for (RankDump& rank : dump.ranks)
      rank.gradients["bias"].layout =
          DumpLayout{{12}, 0, {{Kind::kReplicate, 0, 1, ""}, {Kind::kShard, 0, 1, ""}}};
    const DumpComparison c = compare_dumps(reference, dump, {});
    return std::pair(c.parameters.at(0), c.parameters.at(1));
  };
  const auto [small, large] = found(0.5f, 0.5f);
  EXPECT_EQ(small.name, "bias");
  EXPECT_EQ(small.explanation, Explanation::kSummedParts) << small.headline;
  EXPECT_EQ(small.headline, large.headline);
  EXPECT_EQ(found(0.5f, 0.55f).first.explanation, Explanation::kUnexplained);
  EXPECT_EQ(found(0.01f, 0.5f).first.explanation, Explanation::kUnexplained);
}

TEST(Rearranged, RowsInAnotherOrderAreNamed) {
  const ParameterResult r = compared(pieces({rows({3, 0}), rows({2, 5}), rows({4, 1})}));
  EXPECT_EQ(r.explanation, Explanation::kOtherSlice) << r.headline;
  EXPECT_EQ(r.finding.text(), "wrong-slice");
  EXPECT_THAT(r.headline, HasSubstr("on rank 0 row 0 is 3, 1 is 0 of the reference"));
}

TEST(Rearranged, ColumnsInAnotherOrderAreNamed) {
  constexpr std::size_t kOrder[] = {2, 0, 1, 4, 3};
  std::vector<float> mixed = table;
  for (std::size_t i = 0; i < mixed.size(); ++i)
    mixed[i] = table[i / kColumns * kColumns + kOrder[i % kColumns]];
  const auto copies = [](const std::vector<float>& values) {
    return compared(sample::by_rank("w", {sample::tensor({kRows, kColumns}, values),
                                          sample::tensor({kRows, kColumns}, values)}));
  };
  const ParameterResult r = copies(mixed);
  EXPECT_EQ(r.explanation, Explanation::kOtherSlice) << r.headline;
  EXPECT_THAT(r.headline, HasSubstr("the right columns in another order: on rank 0 column 0 is 2, "
                                    "1 is 0, 2 is 1 of the reference"));
  mixed[7] += 0.25f;
  EXPECT_EQ(copies(mixed).explanation, Explanation::kUnexplained);
}

TEST(Rearranged, TheFewRowsThatAreWrongAreListed) {
  const auto headline = [](std::vector<float> values, std::vector<float> other) {
    return compared(sample::by_rank("w", {sample::tensor({kRows, kColumns}, std::move(values)),
                                          sample::tensor({kRows, kColumns}, std::move(other))}))
        .headline;
  };
  std::vector<float> lost = table;
  std::fill_n(lost.begin() + 3 * kColumns, kColumns, 0.f);
  EXPECT_EQ(headline(lost, lost), "differs on every rank in row 3 of 6 alone, where it is 0");
  lost[kColumns] += 0.25f;
  EXPECT_EQ(headline(lost, lost), "differs on every rank in rows 1, 3 of 6 alone");
  std::vector<float> most = lost;
  for (std::size_t row : {0, 2}) most[row * kColumns] += 0.25f;
  EXPECT_EQ(headline(most, most), "differs on every rank, and nothing simple explains it");
}

// As of a table of which few rows are looked up.
TEST(Rearranged, ARowThatIsLostIsNoneOfTheZeros) {
  std::vector<float> sparse = table;
  std::fill(sparse.begin() + 2 * kColumns, sparse.begin() + 4 * kColumns, 0.f);
  std::vector<float> moved = rows({1, 0}), lost = rows({0, 1});
  std::fill(lost.begin() + kColumns, lost.end(), 0.f);
  const std::vector<float> zeros(2 * kColumns);
  EXPECT_THAT(compared(pieces({lost, zeros, rows({4, 5})}), sparse).headline,
              Not(HasSubstr("another order")));
  EXPECT_THAT(compared(pieces({moved, zeros, rows({4, 5})}), sparse).headline,
              HasSubstr("the right rows in another order: on rank 0 row 0 is 1, 1 is 0"));
}

TEST(Rearranged, ARowThatIsNobodysIsNoOrder) {
  std::vector<float> wrong = rows({3, 0});
  wrong[7] += 0.25f;
  const ParameterResult r = compared(pieces({wrong, rows({2, 5}), rows({4, 1})}));
  EXPECT_EQ(r.explanation, Explanation::kUnexplained) << r.headline;
  // Nor does one row stand for two.
  const ParameterResult twice = compared(pieces({rows({3, 3}), rows({2, 5}), rows({4, 1})}));
  EXPECT_EQ(twice.explanation, Explanation::kUnexplained) << twice.headline;
  const ParameterResult lost = compared(pieces({rows({0, 1}), rows({0, 3}), rows({4, 5})}));
  EXPECT_EQ(lost.headline, "wrong on rank 1, right on ranks 0, 2");
}

}  // namespace
}  // namespace distgrad::dumps
