// docs/command-line.md says what the tables and the options in the code are.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cli/command.h"
#include "model/findings.h"

namespace distgrad {
namespace {

std::string documentation() {
  std::ifstream in(DISTGRAD_SOURCE_DIR "/docs/command-line.md");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> options_in(const std::string& text, const char* line_pattern) {
  std::set<std::string> found;
  const std::regex line(line_pattern, std::regex::multiline);
  for (std::sregex_iterator match(text.begin(), text.end(), line), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

TEST(Documentation, HasEveryFinding) {
  const std::string text = documentation();
  for (const FindingRow& row : kFindings)
    EXPECT_THAT(text, testing::HasSubstr(fmt::format("\n| `{}` | {} |\n", row.name, row.meaning)));
}

TEST(Documentation, HasTheOptionsOfRunAndNoOther) {
  testing::internal::CaptureStdout();
  run_command({"--help"});
  const std::string help = testing::internal::GetCapturedStdout();
  auto offered = options_in(help, "^  (--[a-z-]+)");
  EXPECT_GT(offered.size(), 10u);
  EXPECT_EQ(options_in(documentation(), "^\\| `(--[a-z-]+)"), offered);
}

TEST(Documentation, HasEveryCommand) {
  const std::string text = documentation();
  for (const Command& command : commands())
    EXPECT_THAT(text, testing::HasSubstr(fmt::format("\n| `distgrad {}", command.name)));
}

}  // namespace
}  // namespace distgrad
