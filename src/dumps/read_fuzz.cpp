// libFuzzer calls this: any bytes must be a dump, which is compared with itself, or be refused with
// a UserError. Build and run it as the parser's (src/scenario/parse_fuzz.cpp); mutation_test.cpp
// runs it for a moment.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "dumps/comparison_cases.h"
#include "dumps/comparison_report.h"
#include "dumps/dump_file.h"

namespace {

using namespace distgrad::dumps;

void read_dump(RankDump (*read)(const std::string&), const std::string& path) {
  try {
    Dump dump;
    dump.path = path;
    dump.ranks.push_back(read(path));
    const DumpComparison comparison = compare_dumps(dump, dump, {});
    comparison_text(comparison, {true});
    comparison_json(comparison);
  } catch (const distgrad::UserError&) {
    // A wrong file is refused in this way.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = memfd_create("fuzzed", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  read_dump(read_safetensors, path);
  read_dump(read_json_dump, path);
  return 0;
}
