// libFuzzer calls this: any bytes must parse as a scenario or be refused as a user's error. Build
// it with clang++ and -DDISTGRAD_FUZZ=ON; run it as: parse_fuzz -max_total_time=60
// src/scenario/testdata/good src/scenario/testdata/invalid
#include <cstdint>

#include "base/error.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const distgrad::Scenario scenario =
        distgrad::parse_scenario({reinterpret_cast<const char*>(data), size}, "fuzzed.json");
    if (scenario.world_sizes.size() * scenario.subjects.size() > 100) return 0;
    for (const distgrad::Case& which : distgrad::expand(scenario, {}, "2.15.0"))
      if (which.skip_reason.empty()) distgrad::program_for(which);
  } catch (const distgrad::UserError&) {
    // A wrong file is refused in this way.
  }
  return 0;
}
