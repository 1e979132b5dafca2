#include "report/valid_text.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

constexpr const char* kBad = "\xEF\xBF\xBD";

TEST(ValidText, LeavesTextAlone) {
  const std::string text = "a\tb\nc \xC3\xA9 \xE2\x88\x82 \xF0\x9F\x94\xA5 \xEF\xBF\xBD";
  EXPECT_EQ(valid_text(text), text);
  EXPECT_EQ(valid_text(""), "");
}

TEST(ValidText, RemovesWhatXmlForbids) {
  EXPECT_EQ(valid_text(std::string_view("a\0b", 3)), "ab");
  EXPECT_EQ(valid_text("\x1b[31mred\r\n\x7f"), "[31mred\n");
  EXPECT_EQ(valid_text("\xC2\x9B"
                       "31m"),
            "31m");                                       // CSI as one character
  EXPECT_EQ(valid_text("\xEF\xBF\xBE\xEF\xBF\xBF"), "");  // U+FFFE, U+FFFF
}

TEST(ValidText, ReplacesBytesThatAreNoUtf8) {
  EXPECT_EQ(valid_text("a\xFFz"), std::string("a") + kBad + "z");
  EXPECT_EQ(valid_text("\xE2\x88"), std::string(kBad) + kBad);  // cut short
  EXPECT_EQ(valid_text("\xC0\xAF"), std::string(kBad) + kBad);  // overlong '/'
  EXPECT_EQ(valid_text("\xE0\x80\xAF"), std::string(kBad) + kBad + kBad);
  EXPECT_EQ(valid_text("\xED\xA0\x80"), std::string(kBad) + kBad + kBad);  // a surrogate
  EXPECT_EQ(valid_text("\xF4\x90\x80\x80").substr(0, 3), kBad);            // above U+10FFFF
  EXPECT_EQ(valid_text("\xE2\x88("), std::string(kBad) + kBad + "(");
}

}  // namespace
}  // namespace distgrad
