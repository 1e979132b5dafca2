// Holds what a whole invocation may take. The command line sets it once, before anything starts.
#pragma once

#include <cstdint>

namespace distgrad {

struct Limits {
  double case_s = 0;   // for one case at most, whatever its file says; 0: as the file says
  double total_s = 0;  // for everything; 0: no limit
  std::uint64_t memory_bytes = 0;  // for the simulator, and for the ranks of a case together
  bool host_network = false;       // ranks use the machine's network, not one of their own
};

const Limits& limits();
void set_limits(const Limits&);

// Returns nine tenths of the memory of this machine or of the process's control group.
std::uint64_t usual_memory_bytes();

// Returns the limit that a file of the kernel has; 0 where there is no file or no limit.
std::uint64_t number_in(const char* file);

// Returns how many processes the kernel of this machine has killed for want of memory; 0 where that
// is not known.
std::uint64_t out_of_memory_kills();

// Allows this process at most so many bytes beyond what it has; 0 means no limit.
void limit_memory(std::uint64_t bytes);

// Names the variable of the environment that gives simulators and ranks the limit, in bytes.
inline constexpr const char* kMemoryVariable = "DISTGRAD_MAX_MEMORY";
// Returns what that variable says; 0 where there is no limit.
std::uint64_t given_memory_bytes();

}  // namespace distgrad
