// docs/command-line.md says what the tables and the options in the code are.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cli/command.h"
#include "cli/completion.h"
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

// A line of a help: "  --strict" or "  -q,--quiet"; "-h,--help" is every command's.
constexpr const char* kOption = "^  (?:-[a-gi-z],)?(--[a-z-]+)";

TEST(Documentation, HasEveryFinding) {
  const std::string text = documentation();
  for (const FindingRow& row : kFindings)
    EXPECT_THAT(text, testing::HasSubstr(fmt::format("\n| `{}` | {} |\n", row.name, row.meaning)));
}

TEST(Documentation, HasTheOptionsOfRunAndNoOther) {
  testing::internal::CaptureStdout();
  run_command({"--help"});
  const std::string help = testing::internal::GetCapturedStdout();
  const auto offered = options_in(help, kOption);
  EXPECT_GT(offered.size(), 10u);
  EXPECT_EQ(options_in(documentation(), "^\\| `(--[a-z-]+)"), offered);
}

// A terminal of 80 columns; 44 lines are what is left of a tall window beside one's own command.
TEST(Documentation, HelpOfEveryCommandFitsAScreenAndHasAnExample) {
  for (const Command& command : commands()) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(command.function({"--help"}), ExitCode::kAsExpected) << command.name;
    std::istringstream help(testing::internal::GetCapturedStdout());
    int lines = 0, examples = 0;
    for (std::string line; std::getline(help, line); ++lines) {
      EXPECT_LE(line.size(), 80u) << command.name << ": " << line;
      examples += line.starts_with("  distgrad ") || line.starts_with("Example: distgrad ") ||
                  line.starts_with("  eval ");
    }
    EXPECT_LE(lines, 44) << command.name;
    EXPECT_GE(examples, 1) << command.name;
  }
}

TEST(Completion, HasEveryOptionOfRun) {
  testing::internal::CaptureStdout();
  run_command({"--help"});
  const std::string help = testing::internal::GetCapturedStdout();
  const std::string script = bash_completion();
  for (const std::string& option : options_in(help, kOption))
    EXPECT_THAT(script, testing::ContainsRegex("run\\) options='[^']*" + option + "[ ']"));
}

TEST(Documentation, HasEveryCommand) {
  const std::string text = documentation();
  for (const Command& command : commands())
    EXPECT_THAT(text, testing::HasSubstr(fmt::format("\n| `distgrad {}", command.name)));
}

}  // namespace
}  // namespace distgrad
