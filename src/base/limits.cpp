#include "base/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace distgrad {
namespace {

Limits current;

// Returns the number behind the word that begins a line; 0 where there is none.
std::uint64_t value_of(const char* file, const std::string& word) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(word)) return std::strtoull(line.c_str() + word.size(), nullptr, 10);
  return 0;
}

}  // namespace

std::uint64_t number_in(const char* file) { return value_of(file, ""); }

const Limits& limits() { return current; }
void set_limits(const Limits& limits) { current = limits; }

std::uint64_t usual_memory_bytes() {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  std::uint64_t bytes = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (const std::uint64_t group = number_in(file); group > 0) bytes = std::min(bytes, group);
  return bytes / 10 * 9;
}

std::uint64_t out_of_memory_kills() { return value_of("/proc/vmstat", "oom_kill "); }

std::uint64_t given_memory_bytes() {
  const char* given = std::getenv(kMemoryVariable);
  return given ? std::strtoull(given, nullptr, 10) : 0;
}

void limit_memory(std::uint64_t bytes) {
  if (bytes == 0) return;
  const rlim_t limit = value_of("/proc/self/status", "VmData:") * 1024 + bytes;
  rlimit now{};
  if (getrlimit(RLIMIT_DATA, &now) != 0 || now.rlim_cur < limit) return;
  now.rlim_cur = now.rlim_max = std::min<rlim_t>(limit, now.rlim_max);
  setrlimit(RLIMIT_DATA, &now);
}

}  // namespace distgrad
