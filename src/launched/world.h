// The ranks that a launcher (torchrun, Slurm, MPI) has started, as this process, one of them, knows
// them by its environment. Functions from values to values.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace distgrad {

struct LaunchedWorld {
  std::string launcher;  // "torchrun", "Slurm", "Open MPI", "MPI"
  int rank = 0;
  int size = 1;
  int local_rank = -1;       // on its host; -1: unknown
  int local_size = 0;        // ranks on its host; 0: unknown
  std::string meeting_host;  // where rank 0 is, an address or a name
  int first_port = 0;        // of some that rank 0 tries in turn
  std::string job;           // what tells this job from others, the same on all ranks

  bool is_on_one_host() const { return local_size == size; }
};

using Variable = std::function<const char*(const char* name)>;  // getenv

// None where no launcher has started this process, where it started this one alone, or where
// DISTGRAD_LAUNCHER is "none". Throws UserError where what that says makes no sense, or does not
// suffice.
std::optional<LaunchedWorld> launched_world(const Variable& variable);

// The first host of a list as Slurm writes it, "n[003-5,9],login": n003.
std::string first_host(const std::string& list);

// Tasks on node `node`, from "2(x3),1"; 0: unknown.
int tasks_on_node(const std::string& list, int node);

}  // namespace distgrad
