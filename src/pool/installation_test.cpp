#include "pool/installation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/version.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

TEST(Installation, HasTheRanksInPythonInShareOrInThePackage) {
  const fs::path prefix =
      fs::temp_directory_path() / ("installation_test." + std::to_string(::getpid()));
  EXPECT_EQ(python_ranks_of(prefix / "bin"),
            prefix / "share/distgrad/python/distgrad/ranks/__main__.py");
  fs::create_directories(prefix / "ranks");
  std::ofstream(prefix / "ranks/__main__.py") << "\n";
  EXPECT_EQ(python_ranks_of(prefix / "bin"), prefix / "ranks/__main__.py");
  fs::remove_all(prefix);
}

TEST(Installation, OfPipHasAPython) {
  EXPECT_EQ(environment_python_of("/home/me/env/lib/python3.11/site-packages/distgrad/bin"),
            "/home/me/env/bin/python3");
}

TEST(Installation, TellsOfAnotherTorchOnlyWhereLibrariesAreTheMatter) {
  const std::string plain = cannot_run("/bin/rank", "exited with status 1: no such option");
  EXPECT_EQ(plain, "cannot run /bin/rank: exited with status 1: no such option");
  EXPECT_THAT(cannot_run("/bin/rank", "libtorch.so: failed to map segment from shared object"),
              testing::StartsWith("cannot run /bin/rank, as its memory is limited (ulimit -v)."));
  if (kTorchVersion.empty()) return;
  for (const char* said : {"error while loading shared libraries: libtorch_cpu.so: cannot open",
                           "symbol lookup error: undefined symbol: _ZN3c10",
                           "killed by SIGABRT: Symbol `_ZN3c10' has different size in shared "
                           "object, consider re-linking"})
    EXPECT_THAT(cannot_run("/bin/rank", said),
                testing::StartsWith("cannot run /bin/rank, which was built with torch "));
}

}  // namespace
}  // namespace distgrad
