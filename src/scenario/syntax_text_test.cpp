#include "scenario/syntax_text.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

std::string written(const std::string& text) { return text_of(*parse_expression(text)); }

TEST(TextOf, KeepsWhatIsWrittenPlainly) {
  for (const char* text : {"x",
                           "-2",
                           "1.0",
                           "1e+30",
                           "0.1",
                           "x.sum()",
                           "x[0]",
                           "x[0,]",
                           "x[:, 1:-1, ..., None]",
                           "x[::2]",
                           "x.sum(0, keepdim=True)",
                           "torch.stack([a, b], dim=1)",
                           "(a,)",
                           "(a, b)",
                           "()",
                           "[t * t for t in parts if t.sum() > 0]",
                           "sum(a + b for a, b in zip(x, y))",
                           "x if rank == 0 else torch.zeros_like(x)",
                           "a or b and not c",
                           "f(reduction='sum')",
                           "rank not in (0, 2)",
                           "~x & y | z ^ w",
                           "x << 1 >> 2",
                           "a @ b.t() // 2 % 3",
                           "-x**-y",
                           "(-2)**2"})
    EXPECT_EQ(written(text), text);
}

TEST(TextOf, WritesTheParenthesesThatAreNeeded) {
  for (const char* text :
       {"(a + b) * c", "a - (b - c)", "a / (b * c)", "(a**b)**c", "(-a)**b", "-(a + b)",
        "(a if b else c) + d", "not (a and b)", "(not a).x", "(a < b) == (c < d)", "(2).real",
        "(-x).sum()", "(a + b)[0]", "[x for x in (a if b else c)]", "(a or b) and c",
        "(a if b else c) if d else e"})
    EXPECT_EQ(written(text), text);
}

TEST(TextOf, DropsTheOthers) {
  EXPECT_EQ(written("((a)) + (b * c)"), "a + b * c");
  EXPECT_EQ(written("(a + b) + c"), "a + b + c");
  EXPECT_EQ(written("x [ (0 , 1) ]"), "x[0, 1]");
  EXPECT_EQ(written("- 2"), "-2");
}

TEST(Substituted, ReplacesFreeNamesOnly) {
  const auto replaced = [](const char* text, const char* by) {
    return text_of(*substituted(*parse_expression(text), "y", *parse_expression(by)));
  };
  EXPECT_EQ(replaced("y * y.sum() + f.y", "a + b"), "(a + b) * (a + b).sum() + f.y");
  EXPECT_EQ(replaced("[y * t for t in y]", "x"), "[x * t for t in x]");
  EXPECT_EQ(replaced("[y for y in y]", "x"), "[y for y in x]");
  EXPECT_EQ(replaced("torch.sum(y, dim=y)", "x"), "torch.sum(x, dim=x)");
}

}  // namespace
}  // namespace distgrad
