// Says where the parts of distgrad lie, seen from its executable, and what to say if one cannot
// run.
//
//   build tree, cmake --install   BIN/distgrad{,-rank}, BIN/../share/distgrad/python/distgrad
//   pip install                   PACKAGE/bin/distgrad{,-rank}, PACKAGE (site-packages/distgrad);
//                                 src/launcher is the environment's bin/distgrad
#pragma once

#include <filesystem>
#include <string>

namespace distgrad {

// Returns the folder of this process's executable, with symbolic links followed. Throws
// SystemError.
std::filesystem::path executable_folder();

// Returns the path of the program of the ranks in Python, for executables in `folder`. It need not
// exist.
std::filesystem::path python_ranks_of(const std::filesystem::path& folder);

// Returns the path of the python of the environment that pip installed `folder` into. It need not
// exist.
std::filesystem::path environment_python_of(const std::filesystem::path& folder);

// Explains a rank program that ended before it spoke, with what it said. If that is about
// libraries, the torch that it was built with comes first: if it is missing, or is another one, the
// program may say anything.
std::string cannot_run(const std::string& program, const std::string& said);

}  // namespace distgrad
