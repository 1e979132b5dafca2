// Runs the zygote: a process that has loaded what workers need and forks them on request. It never
// computes, starts no thread, and ends, with everything it forked, when the driver is gone.
#pragma once

#include <optional>

#include "base/unique_fd.h"
#include "rank/worker.h"

namespace distgrad {

// Serves the driver's control socket. Returns twice: in the zygote with nullopt, once the driver is
// gone and all workers are dead; in every worker with its start, after closing everything that
// belongs to the zygote.
std::optional<WorkerStart> serve_zygote(UniqueFd control, const WorkerFunctions& functions);

// Reads the arguments of a worker that the zygote started as a new program: "--worker RANK
// WORLD_SIZE", the descriptors of its data socket, the board and the file for its output, and its
// transport. Returns nullopt if these are not the arguments. main() then calls be_worker().
std::optional<WorkerStart> worker_of_arguments(int count, char** words);

// Runs the whole process for main() of a rank program that was started with "--zygote FD".
[[noreturn]] void be_zygote(int control_fd, const WorkerFunctions& functions);

}  // namespace distgrad
