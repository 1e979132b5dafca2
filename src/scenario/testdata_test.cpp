// The files of testdata: every wrong one gives exactly the lines of its .expect file, every good
// one parses. Set DISTGRAD_WRITE_EXPECT=1 to write the .expect files anew, then read the
// difference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "scenario/parse.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> json_files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

const fs::path kTestdata = fs::path(DISTGRAD_SOURCE_DIR) / "src/scenario/testdata";

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string message_for(const fs::path& file) {
  try {
    parse_scenario(text_of(file), file.filename().string());
  } catch (const InvalidScenario& e) {
    return std::string(e.what()) + "\n";
  }
  return "(no problem found)\n";
}

TEST(InvalidScenarios, GiveTheExpectedMessages) {
  const std::vector<fs::path> files = json_files_below(kTestdata / "invalid");
  ASSERT_GE(files.size(), 300u);
  const char* write = std::getenv("DISTGRAD_WRITE_EXPECT");
  for (const fs::path& file : files) {
    const fs::path expect = fs::path(file).replace_extension(".expect");
    if (write && std::string(write) == "1")
      std::ofstream(expect, std::ios::binary) << message_for(file);
    EXPECT_EQ(message_for(file), text_of(expect)) << file;
  }
}

TEST(InvalidScenarios, NeverPrintControlCharactersOrMoreThanALineEach) {
  for (const fs::path& file : json_files_below(kTestdata / "invalid")) {
    std::istringstream lines(message_for(file));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_TRUE(line.starts_with(file.filename().string() + ":")) << line;
      EXPECT_TRUE(std::none_of(line.begin(), line.end(), [](unsigned char c) {
        return c < 0x20 || c == 0x7f;
      })) << line;
      EXPECT_LE(line.size(), 1000u) << line;
    }
  }
}

TEST(GoodScenarios, HaveNoProblem) {
  const std::vector<fs::path> files = json_files_below(kTestdata / "good");
  ASSERT_GE(files.size(), 5u);
  for (const fs::path& file : files) EXPECT_NO_THROW(load_scenario(file.string())) << file;
}

TEST(GoodScenarios, AreThoseOfTheProject) {
  const fs::path folder = fs::path(DISTGRAD_SOURCE_DIR) / "scenarios";
  ASSERT_TRUE(fs::is_directory(folder));
  const std::vector<fs::path> files = json_files_below(folder);
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files) EXPECT_NO_THROW(load_scenario(file.string())) << file;
}

}  // namespace
}  // namespace distgrad
