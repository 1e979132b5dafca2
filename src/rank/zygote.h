// The zygote: a process that has loaded what workers need and forks them on request. It never
// computes, starts no thread, and ends, with everything it forked, when the driver is gone.
#pragma once

#include <optional>

#include "base/unique_fd.h"
#include "rank/worker.h"

namespace distgrad {

// Serves the driver's control socket. Returns twice: in the zygote with nothing, once the driver is
// gone and all workers are dead; in every worker with what it is to be, everything that belongs to
// the zygote closed.
std::optional<WorkerStart> serve_zygote(UniqueFd control, const WorkerFunctions& functions);

// What a process is to be that the zygote started as a new program: "--worker RANK WORLD_SIZE", the
// descriptors of its data socket, the board and the file for its output, and its transport. Nothing
// where these are not the arguments. main() then calls be_worker().
std::optional<WorkerStart> worker_of_arguments(int count, char** words);

// The whole process: main() of a rank program that was started with "--zygote FD".
[[noreturn]] void be_zygote(int control_fd, const WorkerFunctions& functions);

}  // namespace distgrad
