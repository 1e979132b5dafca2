// libFuzzer calls this: any bytes must be a golden file or be refused with a UserError. Build and
// run it like the parser's fuzz test (src/scenario/parse_fuzz.cpp).
#include <cstdint>

#include "base/error.h"
#include "golden/golden_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    distgrad::golden::parse_golden({reinterpret_cast<const char*>(data), size}, "fuzzed.json");
  } catch (const distgrad::UserError&) {
    // A wrong file is to be refused so.
  }
  return 0;
}
