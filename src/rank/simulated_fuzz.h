// Random programs drawn, read and simulated in one process, without a driver's messages: what
// `distgrad fuzz --simulate` starts one of for each core.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace distgrad {

// `job` is a JSON object: "seed", "first", "step", "end" (program indices first, first + step, ...
// below end), "seconds" (0: no limit), "each" (tell of every program before it begins),
// "world_sizes", "dtypes", "objectives", "kinds" (names; empty: all).
//
// JSON lines go to `fd`: {"done": programs so far, "next": index}, {"failure": index, "rule": ...,
// "text": ...}. Returns the exit status: 0 where every program was tried, 2 where the job cannot be
// read, 3 where `fd` was closed.
int run_simulated_fuzz(const std::string& job, int fd);

struct SimulatedFailure {
  std::string rule, text;  // "invalid", "adjoint", "objectives" or "exception", and a line
};

// What a program must hold: it is a valid scenario and program; every collective gives what plain
// arithmetic gives, forward and backward; of an eighth of the programs, by `index`, the replay of
// the rule `adjoint` equals the truth within the bounds of float64; and of a 16th the truths of the
// objectives add up.
std::optional<SimulatedFailure> check_simulated(const std::string& scenario_text,
                                                std::uint64_t index);

}  // namespace distgrad
