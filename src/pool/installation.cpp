#include "pool/installation.h"

#include <system_error>

#include "base/error.h"
#include "base/version.h"

namespace distgrad {

namespace fs = std::filesystem;

fs::path executable_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) throw SystemError("cannot find this executable: " + error.message());
  return self.parent_path();
}

fs::path python_ranks_of(const fs::path& folder) {
  const fs::path above = folder.parent_path();
  const fs::path program = "ranks/__main__.py";
  std::error_code ignored;
  if (fs::exists(above / program, ignored)) return above / program;
  return above / "share/distgrad/python/distgrad" / program;
}

fs::path environment_python_of(const fs::path& folder) {
  // ENVIRONMENT/lib/pythonX.Y/site-packages/distgrad/bin
  return (folder / "../../../../../bin/python3").lexically_normal();
}

std::string cannot_run(const std::string& program, const std::string& said) {
  if (said.find("failed to map segment") != std::string::npos)
    return "cannot run " + program + ", as its memory is limited (ulimit -v). It said: " + said;
  bool is_about_torch = false;
  for (const char* words :
       {"shared libraries", "shared object", "symbol lookup error", "libtorch", "libc10"})
    is_about_torch = is_about_torch || said.find(words) != std::string::npos;
  if (!is_about_torch || kTorchVersion.empty()) return "cannot run " + program + ": " + said;
  const std::string torch(release_of(kTorchVersion));
  return "cannot run " + program + ", which was built with torch " + torch +
         ". If it finds another one now, or none (`distgrad doctor` says), put torch " + torch +
         " back or build distgrad again. It said: " + said;
}

}  // namespace distgrad
