#include "report/valid_text.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

TEST(ValidText, LeavesTextAlone) {
  const std::string text = "a\tb\nc \xC3\xA9 \xE2\x88\x82 \xF0\x9F\x94\xA5 \xEF\xBF\xBD";
  EXPECT_EQ(valid_text(text), text);
  EXPECT_EQ(valid_text(""), "");
}

TEST(ValidText, ShowsWhatXmlForbids) {
  EXPECT_EQ(valid_text(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(valid_text("\x1b[31mred\n\x7f"), "\\x1b[31mred\n\\x7f");
  EXPECT_EQ(valid_text("\xEF\xBF\xBE\xEF\xBF\xBF"), "\\ufffe\\uffff");
  EXPECT_EQ(valid_text("a\xFFz"), "a\\xffz");
  EXPECT_EQ(valid_text("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(ValidText, ShowsWhatTurnsTheDirectionOfAPage) {
  EXPECT_EQ(valid_text("a\xE2\x80\xAE"
                       "b"),
            "a\\u202eb");
}

}  // namespace
}  // namespace distgrad
