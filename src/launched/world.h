// Describes the ranks that a launcher (torchrun, Slurm, MPI) has started, as this process, one of
// them, knows them from its environment. The functions map values to values.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace distgrad {

struct LaunchedWorld {
  std::string launcher;  // "torchrun", "Slurm", "Open MPI", "MPI"
  int rank = 0;
  int size = 1;
  int local_rank = -1;       // on its host; -1 where unknown
  int local_size = 0;        // number of ranks on its host; 0 where unknown
  std::string meeting_host;  // an address or a name of rank 0's host
  int first_port = 0;        // the first of the ports that rank 0 tries in turn
  int wait_s = 240;          // ranks wait at most so long for each other to come
  std::string job;           // tells this job from others, and is the same on all ranks

  bool is_on_one_host() const { return local_size == size; }
};

using Variable = std::function<const char*(const char* name)>;  // works like getenv

// Returns nothing where no launcher has started this process, where it started this one alone, or
// where DISTGRAD_LAUNCHER is "none". Throws UserError where the environment makes no sense or does
// not suffice.
std::optional<LaunchedWorld> launched_world(const Variable& variable);

// Returns the first host of a list as Slurm writes it: n003 of "n[003-5,9],login".
std::string first_host(const std::string& list);

// Returns the tasks on node `node`, from a list such as "2(x3),1"; 0 where unknown.
int tasks_on_node(const std::string& list, int node);

}  // namespace distgrad
