#include "cli/python_times.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "base/memory_file.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr const char* kVariable = "DISTGRAD_TIMES";

constexpr std::pair<const char*, const char*> kPhases[] = {
    {"interpreter", "starting the interpreter"}, {"torch", "importing torch"},    {"module", "importing the subject"},
    {"connect", "connecting groups"},            {"case", "in cases besides"},
};

}  // namespace

PythonTimes::PythonTimes() : file_(create_memory_file("distgrad-times")) {
  ::setenv(kVariable, fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()).c_str(), 1);
}

PythonTimes::~PythonTimes() { ::unsetenv(kVariable); }

std::string PythonTimes::text() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return "";
  std::string lines(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t count = ::pread(file_.get(), lines.data(), lines.size(), 0);
  return python_times_text(std::string_view(lines).substr(0, static_cast<std::size_t>(std::max<ssize_t>(count, 0))));
}

std::string python_times_text(std::string_view text) {
  std::map<std::pair<std::int64_t, std::string>, std::int64_t> last;  // process, phase
  std::istringstream lines{std::string(text)};
  std::int64_t process = 0, nanoseconds = 0;
  for (std::string phase; lines >> process >> phase >> nanoseconds;) last[{process, phase}] = nanoseconds;
  std::map<std::string, std::int64_t> longest;
  for (const auto& [of, spent] : last) longest[of.second] = std::max(longest[of.second], spent);
  std::vector<std::string> parts;
  for (const auto& [phase, meaning] : kPhases)
    if (const auto found = longest.find(phase); found != longest.end())
      parts.push_back(fmt::format("{} {}", meaning, seconds_text(static_cast<double>(found->second) * 1e-9)));
  if (parts.empty()) return "";
  return fmt::format("Ranks in Python: {} (of each the slowest process).\n", fmt::join(parts, ", "));
}

}  // namespace distgrad
