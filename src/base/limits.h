// How much a whole invocation may take. Set once, by the command line, before anything is started.
#pragma once

#include <cstdint>

namespace distgrad {

struct Limits {
  double case_s = 0;   // at most for one case, whatever its file says; 0: as the file says
  double total_s = 0;  // for everything; 0: no limit
  std::uint64_t memory_bytes = 0;  // for the simulator, and for the ranks of a case together
  bool host_network = false;       // ranks are on the machine's network, not on one of their own
};

const Limits& limits();
void set_limits(const Limits&);

// Nine tenths of what this machine, or the control group that the process is in, has.
std::uint64_t usual_memory_bytes();

// Returns the limit that a file of the kernel has; 0 where there is no file or no limit.
std::uint64_t number_in(const char* file);

// How many processes the kernel has killed for want of memory, on this machine; 0 where that is not
// known.
std::uint64_t out_of_memory_kills();

// Lets this process have at most so many bytes beyond what it has; 0: as many as it gets.
void limit_memory(std::uint64_t bytes);

// The variable in which simulators and ranks are given the limit, in bytes.
inline constexpr const char* kMemoryVariable = "DISTGRAD_MAX_MEMORY";
// What it says; 0: there is no limit.
std::uint64_t given_memory_bytes();

}  // namespace distgrad
