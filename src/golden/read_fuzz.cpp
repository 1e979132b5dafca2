// libFuzzer's entry: any bytes are a golden file or are refused as a user's error. Built and run as
// the parser's (src/scenario/parse_fuzz.cpp).
#include <cstdint>

#include "base/error.h"
#include "golden/golden_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    distgrad::golden::parse_golden({reinterpret_cast<const char*>(data), size}, "fuzzed.json");
  } catch (const distgrad::UserError&) {
    // What a wrong file is answered with.
  }
  return 0;
}
