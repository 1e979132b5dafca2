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
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
  int inherited_fd = -1;  // becomes the child's descriptor kInheritedFd
  int output_fd = -1;     // becomes its standard output and error; standard input is /dev/null
  bool keeps_descriptors = false;  // gets all that this process has, standard input included
  // Gives it and what it starts a network of their own where the kernel offers one, and lets the
  // kernel kill them first where memory runs out.
  bool is_expendable = false;
};

inline constexpr int kInheritedFd = 3;

// Runs the child in a session of its own, so that a terminal's Ctrl-C reaches this process alone.
// The child gets SIGTERM when the thread that called this dies. If the executable cannot be run the
// child exits with 127 and, unless it keeps_descriptors, says why on its standard error. Throws
// SystemError if no child can be started.
pid_t start_child(const ChildCommand&);

// Returns those that start_child() made and that were not given to forget_child().
std::set<pid_t> started_children();
void forget_child(pid_t);  // call it once it was waited for

// Returns for example "SIGSEGV (segmentation fault)" or "signal 77".
std::string signal_description(int signal);

// Describes a wait status: "killed by SIGSEGV (segmentation fault)", "exited with status 3".
std::string exit_description(int wait_status);

// Raises the soft limit of open descriptors to 65536, or as far as the hard one allows, as a rank
// has a connection to every other.
void raise_descriptor_limit();

}  // namespace distgrad
