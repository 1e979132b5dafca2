// A short deterministic fuzzer: mutated test files must parse or be refused as a user's error,
// without a crash or a hang. parse_fuzz.cpp is the same with libFuzzer, for as long as one likes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;
using Random =
    std::mt19937;  // whose numbers the standard fixes; its distributions differ by library

std::vector<std::string> texts_below(const std::string& folder) {
  constexpr std::uintmax_t kSmall = 8192;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(fs::path(DISTGRAD_SOURCE_DIR) / folder))
    if (entry.path().extension() == ".json" && entry.file_size() <= kSmall)
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return texts;
}

std::size_t below(Random& random, std::size_t n) { return n == 0 ? 0 : random() % n; }

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = {"{",
                                               "}",
                                               "[",
                                               "]",
                                               ",",
                                               ":",
                                               "\"",
                                               "\\",
                                               "null",
                                               "true",
                                               "-1",
                                               "0",
                                               "1e999",
                                               "99999999999999999999",
                                               "\"nan\"",
                                               "\"rank\"",
                                               "\"x\"",
                                               "{}",
                                               "[]",
                                               "[[]]",
                                               "{\"shard\":0}",
                                               "\"local\"",
                                               "\"replicate\"",
                                               "\"\\u0000\"",
                                               "\xff",
                                               "\n",
                                               "\"mesh\":{\"dp\":2},",
                                               "\"world_size\":[1,2,4096],",
                                               "\"by_rank\":[1,2],",
                                               "\"objective\":{\"rank\":3},",
                                               "\"sync\":{\"x\":\"mean\"},"};
  return all;
}

void mutate(std::string& text, const std::vector<std::string>& others, Random& random) {
  const std::size_t at = below(random, text.size() + 1);
  switch (below(random, 7)) {
    case 0:
      text.erase(at, 1 + below(random, 8));
      break;
    case 1:
      text.insert(at, tokens()[below(random, tokens().size())]);
      break;
    case 2:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 3:
      text.insert(at, text.substr(below(random, text.size() + 1), below(random, 64)));
      break;
    case 4: {  // the head of this with the tail of another
      const std::string& other = others[below(random, others.size())];
      text = text.substr(0, at) + other.substr(below(random, other.size() + 1));
      break;
    }
    case 6: {  // another digit
      const std::size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(random, 10));
      break;
    }
    case 5: {  // a value in another's place
      const std::size_t begin = text.find(':', at), end = text.find(',', begin);
      if (end != std::string::npos)
        text.replace(begin + 1, end - begin - 1, tokens()[below(random, tokens().size())]);
      break;
    }
  }
}

TEST(MutatedScenarios, ParseOrAreRefused) {
  const std::vector<std::string> good = texts_below("src/scenario/testdata/good");
  const std::vector<std::string> wrong = texts_below("src/scenario/testdata/invalid");
  ASSERT_GE(good.size(), 5u);
  ASSERT_GT(wrong.size(), 100u);
  Random random(20260101);
  int parsed = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<std::string>& texts = below(random, 4) > 0 ? good : wrong;
    std::string text = texts[below(random, texts.size())];
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) mutate(text, wrong, random);
    try {
      const Scenario scenario = parse_scenario(text, "mutated.json");
      ++parsed;
      if (scenario.world_sizes.size() * scenario.subjects.size() > 100) continue;
      for (const Case& which : expand(scenario, {}, "2.15.0"))
        if (which.skip_reason.empty()) program_for(which);
    } catch (const UserError& e) {
      ++refused;
      EXPECT_NE(std::string(e.what()), "") << text;
    }
  }
  // Both ways were taken often enough for the test to mean something.
  EXPECT_GT(parsed, 500);
  EXPECT_GT(refused, 5000);
}

TEST(MutatedScenarios, EveryPrefixOfAFileIsRefused) {
  for (const char* name : {"everything.json", "odd_text.json"}) {
    std::ifstream in(fs::path(DISTGRAD_SOURCE_DIR) / "src/scenario/testdata/good" / name,
                     std::ios::binary);
    const std::string whole(std::istreambuf_iterator<char>(in), {});
    const std::size_t last = whole.rfind('}');
    ASSERT_NE(last, std::string::npos);
    for (std::size_t n = 0; n <= last; ++n)
      EXPECT_THROW(parse_scenario(whole.substr(0, n), name), InvalidScenario) << n;
  }
}

}  // namespace
}  // namespace distgrad
