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
  std::string text = "cannot run " + program + ": " + said;
  const bool is_linker = said.find("error while loading shared libraries") != std::string::npos ||
                         said.find("symbol lookup error") != std::string::npos;
  if (!is_linker || kTorchVersion.empty()) return text;
  const std::string torch(kTorchVersion.substr(0, kTorchVersion.find('+')));
  return text + "\ndistgrad was built with torch " + torch +
         ", and that is not what it finds now: put torch " + torch +
         " back, or build distgrad again with the torch that is there";
}

}  // namespace distgrad
