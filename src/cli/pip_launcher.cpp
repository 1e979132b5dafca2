// Becomes, from an environment's bin, the distgrad of the package that pip installed with it.
//
// Everything else lies in that package, site-packages/distgrad, from where torch is always in the
// same direction. An entry point in Python would do the same, but take longer than most commands.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr int kBroken = 3;  // base/exit_code.h

// Returns where pip may have put packages, for executables in `bin`: lib/pythonX.Y/site-packages,
// Debian's dist-packages, and beside bin with --target.
std::vector<fs::path> site_folders(const fs::path& bin) {
  const fs::path prefix = bin.parent_path();
  std::vector<fs::path> folders = {prefix};
  std::error_code error;
  fs::directory_iterator entry(prefix / "lib", error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().rfind("python", 0) != 0) continue;
    folders.push_back(entry->path() / "site-packages");
    folders.push_back(entry->path() / "dist-packages");
  }
  return folders;
}

// Chooses, among several (Pythons may share a bin), the one installed last, as this launcher was.
fs::path program_for(const fs::path& bin) {
  fs::path found;
  fs::file_time_type newest = fs::file_time_type::min();
  for (const fs::path& site : site_folders(bin)) {
    const fs::path candidate = site / "distgrad" / "bin" / "distgrad";
    std::error_code missing;
    const fs::file_time_type written = fs::last_write_time(candidate, missing);
    if (missing || written <= newest) continue;
    newest = written;
    found = candidate;
  }
  return found;
}

}  // namespace

int main(int, char** argv) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path program = program_for(self.parent_path());
  if (program.empty()) {
    std::fprintf(stderr, "distgrad: the package that belongs to %s is gone; install it again\n",
                 self.c_str());
    return kBroken;
  }
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "distgrad: cannot run %s: %s\n", program.c_str(), std::strerror(errno));
  return kBroken;
}
