#include "base/file_beginning.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/folder_test.h"

namespace distgrad {
namespace {

using FileBeginning = FolderTest;

TEST_F(FileBeginning, IsWhatThereIsUpToALimit) {
  write("file", "0123456789");
  const std::string path = folder_ / "file";
  EXPECT_EQ(beginning_of(path, 4), "0123");
  EXPECT_EQ(beginning_of(path, 10), "0123456789");
  EXPECT_EQ(beginning_of(path, 100), "0123456789");
  EXPECT_EQ(beginning_of(path + "s", 100), "");
  EXPECT_EQ(beginning_of(folder_, 100), "");
  EXPECT_EQ(beginning_of("/dev/zero", 100), "");
}

// A zombie's memory is gone: its files can be opened, and reading them fails or gives nothing.
TEST_F(FileBeginning, OfAProcessThatEndsIsEmptyAndNoFailure) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t ended;
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  const std::string folder = "/proc/" + std::to_string(child);
  EXPECT_EQ(beginning_of(folder + "/environ", 100), "");
  EXPECT_NE(beginning_of(folder + "/stat", 1000).find(" Z "), std::string::npos);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(beginning_of(folder + "/stat", 1000), "");
}

}  // namespace
}  // namespace distgrad
