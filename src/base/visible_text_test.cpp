#include "base/visible_text.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

TEST(VisibleText, LeavesWhatCanBeSeen) {
  for (const char* text : {"", "plain", "Grüße, 漢字 — “quoted” 😀", "a\n\tb"})
    EXPECT_EQ(visible_text(text, Lines::kKept), text);
}

TEST(VisibleText, ShowsWhatCannot) {
  EXPECT_EQ(visible_text("\x1b[31mred\r\x7f\a", Lines::kKept), "\\x1b[31mred\\x0d\\x7f\\x07");
  EXPECT_EQ(visible_text("\u202Etxt.exe\u2066\u200B\uFEFF", Lines::kKept),
            "\\u202etxt.exe\\u2066\\u200b\\ufeff");
  EXPECT_EQ(visible_text("\u009B31m", Lines::kKept), "\\x9b31m");
  EXPECT_EQ(visible_text("\U000E0041", Lines::kKept), "\\U000e0041") << "tags, which nobody sees";
  EXPECT_EQ(visible_text("a\xFF\xC0\xAF\xED\xA0\x80z", Lines::kKept),
            "a\\xff\\xc0\\xaf\\xed\\xa0\\x80z");
  EXPECT_EQ(visible_text(std::string_view("a\0b", 3), Lines::kKept), "a\\x00b");
}

TEST(VisibleText, ANameHasNoLineOfItsOwn) {
  EXPECT_EQ(visible_text("x\n::error::forged\ty", Lines::kEscaped), "x\\x0a::error::forged\\x09y");
}

TEST(VisibleText, IsCut) {
  EXPECT_EQ(visible_text("äöü", Lines::kKept, 3), "äöü");
  EXPECT_EQ(visible_text("äöüß", Lines::kKept, 3), "äöü...");
}

TEST(WithoutCommands, MakesCommandsPlainText) {
  EXPECT_EQ(without_commands("::stop-commands::x\n  ::error::y\nz ::warning::"),
            "\\u003a:stop-commands::x\n  \\u003a:error::y\nz ::warning::");
  EXPECT_EQ(without_commands("a ##[command]b ##vso[task]"),
            "a \\u0023#[command]b \\u0023#vso[task]");
  EXPECT_EQ(without_commands("::x", "case: "), "::x");
  EXPECT_EQ(without_commands("::x", "  "), "\\u003a:x");
  for (const char* blank : {"\u00A0", "\u2003 ", " \u3000", "\u1680\t"})
    EXPECT_EQ(without_commands(std::string(blank) + "::x"), std::string(blank) + "\\u003a:x");
  EXPECT_EQ(without_commands("std::vector\n"), "std::vector\n");
}

}  // namespace
}  // namespace distgrad
