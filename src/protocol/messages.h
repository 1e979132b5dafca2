// The messages of the rank protocol: what driver, zygote and workers (simulators and ranks) say to
// each other. docs/protocol.md describes them for whoever writes a rank in another language.
// Encoding always succeeds; decoding never trusts the other side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/run_result.h"
#include "protocol/expected_values.h"
#include "protocol/frame.h"
#include "protocol/noted_call.h"

namespace distgrad {

inline constexpr int kProtocolVersion = 1;

template <class T>
struct Decoded {
  std::optional<T> value;
  std::string error;  // why there is no value
};

// --- Control socket: driver to zygote ---

enum class WorkerRole { kSimulator, kRank };

// With the frame go three descriptors, in this order: the worker's data socket, the board, and the
// file for its output.
struct ForkWorker {
  std::uint64_t worker = 0;  // the driver's name for it; never used again
  WorkerRole role = WorkerRole::kRank;
  int rank = 0;
  int world_size = 1;
  // Not empty: as a new program, not as a copy of the zygote, for what does not survive a fork,
  // such as CUDA; and what will carry its collectives, "nccl on cuda", so that it can be loaded
  // before the first case.
  std::string exec = {};
  // Which of a launcher's processes it is to be; -1: that of its rank. Elsewhere it means nothing.
  int place = -1;
};

struct KillWorker {  // and every process it started; no such worker: nothing happens
  std::uint64_t worker = 0;
};

// Of one whose ranks are on other machines: what is to be seen of a worker, with the place that its
// code is at.
struct LookAtWorker {
  std::uint64_t worker = 0;
};

using ZygoteRequest = std::variant<ForkWorker, KillWorker, LookAtWorker>;

// --- Control socket: zygote to driver ---

struct ZygoteReady {
  int protocol = kProtocolVersion;
  std::string torch;  // its version
  // Whether its ranks say of tensors that are as expected that they are, in place of sending them.
  bool takes_expected = false;
};

struct WorkerForked {
  std::uint64_t worker = 0;
  int pid = 0;
};

struct WorkerExited {
  std::uint64_t worker = 0;
  int wait_status = 0;  // as waitpid gives it
};

struct ForkFailed {
  std::uint64_t worker = 0;
  std::string message;
};

// What /proc would say of a worker, where that is another machine's: the answer to LookAtWorker,
// and now and then by itself.
struct WorkerSeen {
  std::uint64_t worker = 0;
  char state = 0;              // as /proc has it; 0: not known
  std::int64_t waited_ns = 0;  // for a core
  std::optional<std::string> at =
      {};  // in an answer: "loss.py:41 in f: time.sleep(1000)", or empty
};

// A machine, or what starts the ranks there, is gone.
struct ZygoteLost {
  std::string message;
  bool is_final = false;  // and will not come back
};

using ZygoteEvent =
    std::variant<ZygoteReady, WorkerForked, WorkerExited, ForkFailed, WorkerSeen, ZygoteLost>;

// --- Data socket ---

using AnyRequest = std::variant<SimulateRequest, RunRequest>;
using AnyResult = std::variant<Simulation, RankResult>;

// Driver to worker. Ids grow from 1 with each request on a socket; they also stand on the board.
struct WorkRequest {
  std::uint64_t id = 0;
  AnyRequest what;
  std::shared_ptr<const ExpectedValues> expected = {};  // of a run, where they are known
};

// Worker to driver: one for each request, in the same order. After one with an error no other
// follows.
struct WorkReply {
  std::uint64_t id = 0;
  AnyResult what;
  std::optional<RankError> error;  // of a simulation; a rank's is in its RankResult
  std::string output;  // what standard output and error got since the last reply, bounded
  std::int64_t elapsed_ns = 0;
  std::vector<NotedCall> entered = {};  // collectives, in their order; the first ones of very many
  SharedPayload payload = {};  // of the message itself, where its tensors came in shared memory
};

SharedFrame encode(const ZygoteRequest&, std::vector<std::shared_ptr<const UniqueFd>> fds = {});
SharedFrame encode(const ZygoteEvent&);
SharedFrame encode_request(std::uint64_t id, const AnyRequest&, const ExpectedValues* = nullptr);
// `expected`: of the request that is answered; its tensors are not sent back.
SharedFrame encode(const WorkReply&, const SharedPayload* expected = nullptr);

Decoded<ZygoteRequest> decode_zygote_request(const Frame&);
Decoded<ZygoteEvent> decode_zygote_event(const Frame&);
Decoded<WorkRequest> decode_request(const Frame&);
Decoded<WorkReply> decode_reply(const Frame&, const SharedPayload* expected = nullptr);

}  // namespace distgrad
