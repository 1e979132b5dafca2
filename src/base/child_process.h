// Starts a child process that cannot outlive this one.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace distgrad {

struct ChildCommand {
  std::vector<std::string> arguments;  // the first is the executable's path
  std::vector<std::pair<std::string, std::string>> environment;  // in addition to this process's
  int inherited_fd = -1;           // what the child gets as descriptor kInheritedFd
  int output_fd = -1;              // its standard output and error; standard input is /dev/null
  bool keeps_descriptors = false;  // all that this process has, standard input included
  // It and what it starts: a network of its own where the kernel offers one, and the first to go
  // where memory runs out.
  bool is_expendable = false;
};

inline constexpr int kInheritedFd = 3;

// The child runs in a session of its own, so that a terminal's Ctrl-C reaches this process alone;
// it gets SIGTERM when the thread that called this dies. When the executable cannot be run, the
// child says so on its standard error and exits with 127. Throws SystemError when there can be no
// child.
pid_t start_child(const ChildCommand&);

// Those that start_child() made and that were not given to forget_child().
std::set<pid_t> started_children();
void forget_child(pid_t);  // it was waited for

// "SIGSEGV (segmentation fault)", or "signal 77".
std::string signal_description(int signal);

// Of a wait status: "killed by SIGSEGV (segmentation fault)", "exited with status 3".
std::string exit_description(int wait_status);

// Raises the soft limit of open descriptors as far as the hard one allows: a rank has a connection
// to every other.
void raise_descriptor_limit();

}  // namespace distgrad
