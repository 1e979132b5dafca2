// Draws, reads and simulates random programs in one process, without a driver's messages. `distgrad
// fuzz --simulate` starts one such process per core.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace distgrad {

// `job` is a JSON object: "seed", "first", "step", "end" (program indices first, first + step, ...
// below end), "seconds" (0: no limit), "each" (tell of every program before it begins),
// "world_sizes", "dtypes", "objectives", "kinds" (names; empty: all).
//
// Writes JSON lines to `fd`: {"done": programs so far, "next": index}, {"failure": index, "rule":
// ..., "text": ...}. Returns the exit status: 0 if every program was tried, 2 if the job cannot be
// read, 3 if `fd` was closed.
int run_simulated_fuzz(const std::string& job, int fd);

struct SimulatedFailure {
  std::string rule, text;  // "invalid", "adjoint", "objectives" or "exception", and a line
};

// Checks that a program is a valid scenario and that every collective gives what plain arithmetic
// gives, forward and backward. For an eighth of the programs, chosen by `index`, the replay of the
// rule `adjoint` must equal the truth within the bounds of float64. For a 16th, the truths of the
// objectives must add up.
std::optional<SimulatedFailure> check_simulated(const std::string& scenario_text,
                                                std::uint64_t index);

}  // namespace distgrad
