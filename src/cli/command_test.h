// For tests that run distgrad as a user does, in a folder of their own.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "base/folder_test.h"

namespace distgrad {

class CommandTest : public FolderTest {
 protected:
  // `arguments` as typed in a shell, `before` what stands before the executable's name. The exit
  // code, -1 where a signal ended it; what was printed is in out_ and err_.
  int distgrad(const std::string& arguments, const std::string& before = "") {
    const std::string command = "cd '" + folder_.string() + "' && " + before +
                                " '" DISTGRAD_BIN_DIR "/distgrad' " + arguments + " >out 2>err";
    const int status = std::system(command.c_str());
    out_ = read("out");
    err_ = read("err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string out_, err_;
};

}  // namespace distgrad
