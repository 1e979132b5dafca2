#include "pool/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/failed_call.h"
#include "base/limits.h"
#include "base/number_text.h"

namespace distgrad {
namespace {

constexpr std::string_view kNoMemory[] = {"can't allocate memory", "std::bad_alloc",
                                          "not enough memory", "MemoryError",
                                          "Cannot allocate memory"};

}  // namespace

std::string with_remedy(std::string message) {
  const auto says = [&](std::string_view what) { return message.find(what) != message.npos; };
  if (says("Too many open files") && !says("ulimit")) return message + kMoreFiles;
  if (std::none_of(std::begin(kNoMemory), std::end(kNoMemory), says) || says("--max-memory"))
    return message;
  return fmt::format(
      "{}; a simulator, and the ranks of a case together, may have {} (--max-memory)", message,
      bytes_text(limits().memory_bytes));
}

}  // namespace distgrad
