// For tests that need files: a folder of their own, gone afterwards.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace distgrad {

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "distgrad_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  // Paths count within the folder.
  void write(const std::filesystem::path& path, const std::string& bytes) {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path, std::ios::binary) << bytes;
  }
  std::string read(const std::filesystem::path& path) const {
    std::ifstream in(folder_ / path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
};

}  // namespace distgrad
