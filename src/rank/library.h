// Declares what libdistgrad_rank.so exports. It is the whole program of distgrad-rank. A Python
// process that has imported torch loads it for the loops of a zygote and its workers, and for the
// operators distgrad_rank::* (python_operators.cpp). It was compiled against one version of torch,
// and fits no other.
#pragma once

#include <stddef.h>

#define DISTGRAD_BORDER extern "C" [[gnu::visibility("default")]]

// Does what distgrad-rank does with these words; returns the exit status, if it returns.
DISTGRAD_BORDER int distgrad_rank_main(int argc, char** argv);

// Says what a worker is to be, as WorkerStart does.
struct DistgradStart {
  int is_simulator, rank, world_size;
  int socket, board, output;  // descriptors, which the worker owns
  int uses_gpu;
};

// Serves the driver's control socket. `fork` forks as Python has to; it returns -errno if that
// fails. Returns 1 in each worker, with `start` filled in, and 0 in the zygote once the driver is
// gone and all workers are dead.
DISTGRAD_BORDER int distgrad_rank_zygote(int control, int (*fork)(), DistgradStart* start);

// Answers one request, whose header is JSON text and whose tensor data are `count` numbers, by
// calling distgrad_rank_reply with that of its reply (docs/protocol.md). Both are there until it
// returns.
typedef void (*DistgradAnswer)(const char* header, size_t bytes, const double* data, size_t count,
                               void* reply);
DISTGRAD_BORDER void distgrad_rank_reply(void* reply, const char* header, size_t bytes,
                                         const double* data, size_t count);

// Turns this process into the worker, calls `begin` and answers the driver's requests until there
// are no more. Returns the status with which the process has to exit, without tear-down.
DISTGRAD_BORDER int distgrad_rank_work(const DistgradStart* start, void (*begin)(),
                                       DistgradAnswer answer);
