// A short deterministic fuzzer: mutated test files must parse or be refused as a user's error,
// without a crash or a hang. parse_fuzz.cpp is the same with libFuzzer, for as long as one likes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/mutation_test.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> scenario_tokens() {
  std::vector<std::string> tokens = json_tokens();
  for (const char* own :
       {"\"rank\"", "\"x\"", "{\"shard\":0}", "\"local\"", "\"replicate\"", "\"mesh\":{\"dp\":2},",
        "\"world_size\":[1,2,4096],", "\"by_rank\":[1,2],", "\"objective\":{\"rank\":3},",
        "\"sync\":{\"x\":\"mean\"},"})
    tokens.push_back(own);
  return tokens;
}

TEST(MutatedScenarios, ParseOrAreRefused) {
  const std::vector<std::string> good = texts_below("src/scenario/testdata/good");
  const std::vector<std::string> wrong = texts_below("src/scenario/testdata/invalid");
  ASSERT_GE(good.size(), 5u);
  ASSERT_GT(wrong.size(), 100u);
  const std::vector<std::string> tokens = scenario_tokens();
  MutationRandom random(20260101);
  int parsed = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<std::string>& texts = below(random, 4) > 0 ? good : wrong;
    std::string text = texts[below(random, texts.size())];
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) mutate(text, wrong, tokens, random);
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
