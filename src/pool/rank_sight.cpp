#include "pool/rank_sight.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/file_beginning.h"
#include "base/memory_file.h"

namespace distgrad {
namespace {

constexpr std::size_t kStackBytes = 32 << 10;
constexpr useconds_t kLookUs = 10'000;
constexpr int kLooks = 30;      // while waiting for a stack
constexpr int kQuietLooks = 3;  // without more output: that was all
constexpr std::size_t kLongestLine = 80;
constexpr std::size_t kLongestSource = 4 << 20;

std::string source_line(const std::string& path, int number) {
  std::string_view text;
  const std::string source = beginning_of(path, kLongestSource);
  text = source;
  for (int i = 1; i < number && !text.empty(); ++i)
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  text = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return std::string(text.substr(0, std::min(text.size(), kLongestLine)));
}

bool is_users(std::string_view path) {
  return path.find("/distgrad/ranks/") == path.npos && path.find("-packages/torch/") == path.npos &&
         !path.starts_with('<');
}

}  // namespace

char process_state(pid_t pid) {
  const std::string stat = beginning_of("/proc/" + std::to_string(pid) + "/stat", 1024);
  const std::size_t end = stat.rfind(')');
  return end == stat.npos || end + 2 >= stat.size() ? '\0' : stat[end + 2];
}

std::string state_text(char state) {
  switch (state) {
    case 'R':
      return "busy";
    case 'S':
    case 'D':
      return "asleep";
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    default:
      return "";
  }
}

std::int64_t waited_for_core_ns(pid_t pid) {
  const std::string text = beginning_of("/proc/" + std::to_string(pid) + "/schedstat", 256);
  const std::size_t space = text.find(' ');
  return space == text.npos ? 0 : std::atoll(text.c_str() + space);
}

std::string place_in_stack(const std::string& stack) {
  constexpr std::string_view kFile = "  File \"";
  for (std::size_t at = stack.find(kFile); at != stack.npos; at = stack.find(kFile, at + 1)) {
    const std::string line =
        stack.substr(at + kFile.size(), stack.find('\n', at) - at - kFile.size());
    const std::size_t end = line.find("\", line ");
    if (end == line.npos) continue;
    const std::string path = line.substr(0, end);
    if (!is_users(path)) continue;
    const int number = std::atoi(line.c_str() + end + 8);
    const std::size_t in = line.find(" in ", end);
    std::string place =
        std::filesystem::path(path).filename().string() + ":" + std::to_string(number);
    if (in != line.npos) place += line.substr(in);
    if (const std::string source = source_line(path, number); !source.empty())
      place += ": " + source;
    return place;
  }
  return {};
}

std::string stack_of(pid_t pid, int output_fd) {
  const char state = process_state(pid);
  if (state != 'R' && state != 'S' && state != 'D') return {};
  const off_t before = lseek(output_fd, 0, SEEK_CUR);
  if (before < 0 || kill(pid, SIGUSR1) != 0) return {};
  off_t after = before;
  for (int look = 0, quiet = 0; look < kLooks && quiet < kQuietLooks; ++look) {
    usleep(kLookUs);
    const off_t now = lseek(output_fd, 0, SEEK_CUR);
    quiet = now > before && now == after ? quiet + 1 : 0;
    after = now;
  }
  if (after <= before) return {};
  return read_output(output_fd, std::min(kStackBytes, static_cast<std::size_t>(after - before)));
}

}  // namespace distgrad
