#include "cli/python_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace distgrad {
namespace {

TEST(PythonTimes, TheLastLineOfAProcessAndTheSlowestProcessCount) {
  EXPECT_EQ(python_times_text("7 torch 2000000000\n8 case 9000000000\n8 case 500000000\n9 case "
                              "1500000000\n9 module 20000000\n"),
            "Ranks in Python: importing torch 2.0 s, importing the subject 0.02 s, in cases "
            "besides 1.5 s (of each the slowest process).\n");
  EXPECT_EQ(python_times_text(""), "");
  EXPECT_EQ(python_times_text("not what it should be\n"), "");
}

TEST(PythonTimes, OnlyAsLongAsItLives) {
  {
    const PythonTimes times;
    EXPECT_NE(std::getenv("DISTGRAD_TIMES"), nullptr);
    EXPECT_EQ(times.text(), "");
  }
  EXPECT_EQ(std::getenv("DISTGRAD_TIMES"), nullptr);
}

}  // namespace
}  // namespace distgrad
