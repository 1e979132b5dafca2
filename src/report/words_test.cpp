#include "report/words.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/element_index.h"

namespace distgrad {
namespace {

TEST(Words, NumbersAreShortAndReadBack) {
  EXPECT_EQ(number_text(20), "20");
  EXPECT_EQ(number_text(-0.0), "-0");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(number_text(1.0 / 3, 6), "0.333333");
  EXPECT_EQ(number_text(20, 6), "20");
  EXPECT_EQ(number_text(std::nan("")), "nan");
  EXPECT_EQ(number_text(-std::nan("")), "nan");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Words, OfManyEquationsTheFirstFew) {
  EXPECT_EQ(short_formula("x̄_r = Σ_k ȳ_k"), "x̄_r = Σ_k ȳ_k");
  EXPECT_EQ(short_formula("a = 1; b = 2; c = 3; d = 4; e = 5"),
            "a = 1; b = 2; c = 3; d = 4; e = 5");
  EXPECT_EQ(short_formula("a = 1; b = 2; c = 3; d = 4; e = 5; f = d_r 6, d_r = ∏_{j≠r} x_j"),
            "a = 1; b = 2; c = 3; d = 4; … (2 more, see --json), d_r = ∏_{j≠r} x_j");
}

TEST(Words, RatiosAreFractionsWhereTheyAre) {
  EXPECT_EQ(ratio_text(0.5), "1/2");
  EXPECT_EQ(ratio_text(1.0 / 3), "1/3");
  EXPECT_EQ(ratio_text(-2), "-2");
  EXPECT_EQ(ratio_text(1.5), "3/2");
  EXPECT_EQ(ratio_text(0.371234), "0.371234");
  EXPECT_EQ(ratio_text(0), "0");
}

TEST(Words, ArraysNest) {
  EXPECT_EQ(array_text(Array::scalar(2)), "2");
  EXPECT_EQ(array_text(Array({2, 2}, {1, 2, 3, 4})), "[[1, 2], [3, 4]]");
  EXPECT_EQ(array_text(Array({0}, {})), "[]");
  EXPECT_EQ(array_text(Array({2, 0}, {})), "[[], []]");
}

TEST(Words, IndexOfAnElement) {
  EXPECT_EQ(index_text(index_of({2, 3, 4}, 17)), "[1, 1, 1]");
  EXPECT_EQ(index_text(index_of({}, 0)), "");
}

TEST(Words, Seconds) {
  EXPECT_EQ(seconds_text(0.0042), "0.004 s");
  EXPECT_EQ(seconds_text(0.42), "0.4 s");
  EXPECT_EQ(seconds_text(12.4), "12 s");
  EXPECT_EQ(seconds_text(9.97), "10.0 s");
  EXPECT_EQ(seconds_text(125), "2 min 5 s");
  EXPECT_EQ(seconds_text(0), "0 s");
}

TEST(Words, WrapsAtTheColumnAndKeepsLineBreaks) {
  EXPECT_EQ(wrapped("aaa bbb ccc", 2, 9), "  aaa bbb\n  ccc\n");
  EXPECT_EQ(wrapped("aaa bbb ccc", 2, 8), "  aaa\n  bbb\n  ccc\n");
  EXPECT_EQ(wrapped("one\ntwo\n", 0, 80), "one\ntwo\n");
  EXPECT_EQ(wrapped("averyveryverylongword b", 2, 10), "  averyveryverylongword\n  b\n");
}

TEST(Words, IndentsLinesWithoutTrailingSpace) {
  EXPECT_EQ(indented("a\n\n  b", 2), "  a\n\n    b\n");
  EXPECT_EQ(indented("", 2), "");
}

TEST(Words, EscapeSequencesDoNotReachTheTerminal) {
  EXPECT_EQ(for_terminal("a\x1b[31mb\tc\n"), "a\\x1b[31mb\tc\n");
  EXPECT_EQ(on_one_line("a.json\nok    b.json"), "a.json\\x0aok    b.json");
}

TEST(Words, QuotesForTheShell) {
  EXPECT_EQ(shell_quoted("a b.json:world_size=3"), "'a b.json:world_size=3'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
}

TEST(Words, WidthCountsCharactersRatherThanBytes) {
  EXPECT_EQ(width_of("größe"), 5u);
  EXPECT_EQ(padded("größe", 7), "größe  ");
  EXPECT_EQ(padded_left("größe", 3), "größe");
}

}  // namespace
}  // namespace distgrad
