// Where the parts of distgrad lie, seen from its executable, and what to say where one cannot run.
//
//   build tree, cmake --install   BIN/distgrad{,-rank}, BIN/../share/distgrad/python/distgrad
//   pip install                   PACKAGE/bin/distgrad{,-rank}, PACKAGE (site-packages/distgrad);
//                                 src/launcher is the environment's bin/distgrad
#pragma once

#include <filesystem>
#include <string>

namespace distgrad {

// The folder of this process's executable, symbolic links followed. Throws SystemError.
std::filesystem::path executable_folder();

// The program of the ranks in Python, for executables in `folder`; whether there is one or not.
std::filesystem::path python_ranks_of(const std::filesystem::path& folder);

// The python of the environment that pip installed executables in `folder` into; whether there is
// one or not.
std::filesystem::path environment_python_of(const std::filesystem::path& folder);

// What to tell of a rank program that ended before it spoke, with what it said. Where that is about
// libraries, the torch that it was built with comes first: it is missing, or another one is there,
// and then anything may be said.
std::string cannot_run(const std::string& program, const std::string& said);

}  // namespace distgrad
