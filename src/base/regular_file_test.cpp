#include "base/regular_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/folder_test.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

class RegularFile : public FolderTest {};

TEST_F(RegularFile, IsRead) {
  std::ofstream(folder_ / "a.json") << "{}";
  EXPECT_EQ(read_regular_file((folder_ / "a.json").string(), 2).text, "{}");
  EXPECT_EQ(read_regular_file((folder_ / "a.json").string(), 2).problem, "");
  EXPECT_EQ(read_regular_file((folder_ / "a.json").string(), 1).problem,
            "the file is larger than 0 MiB");
  fs::create_symlink("a.json", folder_ / "link.json");
  EXPECT_EQ(read_regular_file((folder_ / "link.json").string(), 9).text, "{}");
}

TEST_F(RegularFile, WhatNeverEndsOrNeverBeginsIsRefused) {
  const fs::path pipe = folder_ / "pipe.json";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path :
       {pipe.string(), std::string("/dev/zero"), std::string("/proc/self/status")})
    EXPECT_EQ(read_regular_file(path, 1 << 20).problem, "is no regular file") << path;
  EXPECT_EQ(read_regular_file(folder_.string(), 9).problem, "is a folder");
  EXPECT_EQ(read_regular_file((folder_ / "none").string(), 9).error, ENOENT);
}

}  // namespace
}  // namespace distgrad
