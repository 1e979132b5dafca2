// Damaged golden files: nothing but a user's error comes of them. read_fuzz.cpp is the same with
// libFuzzer.
#include "base/mutation_test.h"

#include <gtest/gtest.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace distgrad::golden {
namespace {

TEST(MutatedGoldenFiles, AreReadOrRefused) {
  const std::vector<std::string> files = texts_below("golden");
  ASSERT_GT(files.size(), 100u);
  std::vector<std::string> tokens = json_tokens();
  for (const char* own : {"\"0x1p-3\"", "\"float32\"", "\"summary\":{},", "\"format\":2,"})
    tokens.push_back(own);
  read_mutated(files, 5'000, tokens, [](const std::string& text) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  });
}

}  // namespace
}  // namespace distgrad::golden
