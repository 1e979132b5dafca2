#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/folder_test.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

class AtomicFile : public FolderTest {
 protected:
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
};

TEST_F(AtomicFile, WritesAndReplaces) {
  write_file_atomically(folder_ / "r.json", "one");
  write_file_atomically(folder_ / "r.json", std::string(100'000, 'x'));
  EXPECT_EQ(read(folder_ / "r.json"), std::string(100'000, 'x'));
  EXPECT_EQ(files(), 1u) << "a temporary file was left";
}

TEST_F(AtomicFile, NewFilesAreReadableAsTheUmaskSaysAndOldOnesKeepTheirMode) {
  const mode_t mask = ::umask(022);
  write_file_atomically(folder_ / "r.json", "one");
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder_ / "r.json").permissions()), 0644u);
  fs::permissions(folder_ / "r.json", fs::perms(0640));
  write_file_atomically(folder_ / "r.json", "two");
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder_ / "r.json").permissions()), 0640u);
  ::umask(mask);
}

TEST_F(AtomicFile, FollowsALinkRatherThanReplacingIt) {
  write_file_atomically(folder_ / "real.json", "one");
  fs::create_symlink("real.json", folder_ / "link.json");
  write_file_atomically(folder_ / "link.json", "two");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.json"));
  EXPECT_EQ(read(folder_ / "real.json"), "two");
}

TEST_F(AtomicFile, WritesToADeviceDirectly) {
  EXPECT_NO_THROW(write_file_atomically("/dev/null", "text"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFile, SaysWhatCannotBeWritten) {
  try {
    write_file_atomically(folder_ / "no" / "r.json", "text");
    FAIL() << "no exception";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()), "cannot write " + (folder_ / "no" / "r.json").string() +
                                         ": No such file or directory");
  }
  EXPECT_THROW(write_file_atomically(folder_, "text"), UserError);
}

}  // namespace
}  // namespace distgrad
