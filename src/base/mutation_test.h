// For tests that feed readers with damaged input: a short deterministic fuzzer. The libFuzzer
// targets (*_fuzz.cpp) do the same for as long as one likes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace distgrad {

using MutationRandom =
    std::mt19937;  // whose numbers the standard fixes; its distributions differ by library

inline std::size_t below(MutationRandom& random, std::size_t n) {
  return n == 0 ? 0 : random() % n;
}

// The small JSON files below a folder of the sources, in their order.
inline std::vector<std::string> texts_below(const std::string& folder) {
  namespace fs = std::filesystem;
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

// Pieces of JSON that are of interest to any reader.
inline std::vector<std::string> json_tokens() {
  return {"{",
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
          "9223372036854775807",
          "\"nan\"",
          "\"\"",
          "{}",
          "[]",
          "[[]]",
          "\"\\u0000\"",
          "\"\\ud800\"",
          "\xff",
          "\n",
          std::string(300, '[')};
}

inline void mutate(std::string& text, const std::vector<std::string>& others,
                   const std::vector<std::string>& tokens, MutationRandom& random) {
  const std::size_t at = below(random, text.size() + 1);
  switch (below(random, 7)) {
    case 0:
      text.erase(at, 1 + below(random, 8));
      break;
    case 1:
      text.insert(at, tokens[below(random, tokens.size())]);
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
    case 5: {  // a value in another's place
      const std::size_t begin = text.find(':', at), end = text.find(',', begin);
      if (end != std::string::npos)
        text.replace(begin + 1, end - begin - 1, tokens[below(random, tokens.size())]);
      break;
    }
    case 6: {  // another digit
      const std::size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(random, 10));
      break;
    }
  }
}

// `reader` is given so many damaged seeds, of one to four mutations each, and the seeds themselves
// before.
template <class Reader>
void read_mutated(const std::vector<std::string>& seeds, int count,
                  const std::vector<std::string>& tokens, Reader reader) {
  MutationRandom random(20260101);
  for (const std::string& seed : seeds) reader(seed);
  for (int i = 0; i < count; ++i) {
    std::string text = seeds[below(random, seeds.size())];
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) mutate(text, seeds, tokens, random);
    reader(text);
  }
}

}  // namespace distgrad
