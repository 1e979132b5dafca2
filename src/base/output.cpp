#include "base/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/visible_text.h"

namespace distgrad {
namespace {

std::string problem;

// Wraps a stream and keeps what stands on its last line so far, as a command may come in pieces.
class Stream {
 public:
  explicit Stream(std::FILE* file) : file_(file) {}

  void put(std::string_view text) {
    write(without_commands(text, line_));
    const std::size_t end = text.rfind('\n');
    if (end != text.npos) line_.clear();
    line_ += end == text.npos ? text : text.substr(end + 1);
  }

  void write(std::string_view text) {
    errno = 0;
    const bool is_written = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
    if ((!is_written || std::fflush(file_) != 0) && problem.empty())
      problem = errno != 0 ? std::strerror(errno) : "cannot be written";
  }

 private:
  std::FILE* file_;
  std::string line_;
};

Stream& output() {
  static Stream stream(stdout);
  return stream;
}

}  // namespace

void put(std::string_view text) { output().put(text); }
void put_raw(std::string_view text) { output().write(text); }

void put_error(std::string_view text) {
  std::fflush(stdout);
  std::fputs(without_commands(text).c_str(), stderr);
  std::fflush(stderr);
}

std::string_view output_problem() { return problem; }

}  // namespace distgrad
