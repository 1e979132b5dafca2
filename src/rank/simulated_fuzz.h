// Random programs drawn, read and simulated in one process, without a driver's messages: what `distgrad fuzz --simulate` starts one of
// for each core.
#pragma once

#include <string>

namespace distgrad {

// `job` is a JSON object: "seed", "first", "step", "end" (program indices first, first + step, ... below end), "seconds" (0: no
// limit), "each" (tell of every program before it begins), "world_sizes", "dtypes", "objectives", "kinds" (names; empty: all).
//
// Every program must be a valid scenario and program; what its collectives' hand-written adjoints give in place of
// autograd's derivative must equal the truth within the bounds of float64; and the truths of the objectives must add up.
// JSON lines go to `fd`: {"done": programs so far, "next": index}, {"failure": index, "rule": ..., "text": ...}.
// Returns the exit status: 0 where every program was tried, 2 where the job cannot be read, 3 where `fd` was closed.
int run_simulated_fuzz(const std::string& job, int fd);

}  // namespace distgrad
