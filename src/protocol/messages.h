// Defines the messages of the rank protocol, between driver, zygote and workers (simulators and
// ranks). docs/protocol.md describes them for authors of ranks in other languages. Encoding always
// succeeds; decoding never trusts the other side.
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

// Three descriptors go with the frame, in this order: the worker's data socket, the board, and the
// file for its output.
struct ForkWorker {
  std::uint64_t worker = 0;  // the driver's name for it; never reused
  WorkerRole role = WorkerRole::kRank;
  int rank = 0;
  int world_size = 1;
  // If not empty, the worker is to be a new program, not a copy of the zygote, since CUDA, say,
  // does not survive a fork. It then names what will carry the collectives, "nccl on cuda", to be
  // loaded before the first case.
  std::string exec = {};
  // Gives its place among a launcher's processes; -1 means that of its rank. Without a launcher it
  // means nothing.
  int place = -1;
};

struct KillWorker {  // kills every process that it started, too; an unknown worker is ignored
  std::uint64_t worker = 0;
};

// Asks a zygote whose ranks are on other machines what can be seen of a worker, and at which place
// its code is.
struct LookAtWorker {
  std::uint64_t worker = 0;
};

using ZygoteRequest = std::variant<ForkWorker, KillWorker, LookAtWorker>;

// --- Control socket: zygote to driver ---

struct ZygoteReady {
  int protocol = kProtocolVersion;
  std::string torch;  // its version
  // True if its ranks report that tensors are as expected instead of sending them.
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

// Says what /proc on another machine says of a worker. It answers LookAtWorker, and also comes now
// and then by itself.
struct WorkerSeen {
  std::uint64_t worker = 0;
  char state = 0;              // as in /proc; 0: unknown
  std::int64_t waited_ns = 0;  // for a core
  // In an answer only, says where its code is: "loss.py:41 in f: time.sleep(1000)", or empty.
  std::optional<std::string> at = {};
};

// Says that a machine, or what starts the ranks there, is gone.
struct ZygoteLost {
  std::string message;
  bool is_final = false;  // it will not come back
};

using ZygoteEvent =
    std::variant<ZygoteReady, WorkerForked, WorkerExited, ForkFailed, WorkerSeen, ZygoteLost>;

// --- Data socket ---

using AnyRequest = std::variant<SimulateRequest, RunRequest>;
using AnyResult = std::variant<Simulation, RankResult>;

// Goes from driver to worker. Ids grow from 1 with each request on a socket; the board has them,
// too.
struct WorkRequest {
  std::uint64_t id = 0;
  AnyRequest what;
  std::shared_ptr<const ExpectedValues> expected = {};  // of a run, if they are known
};

// Goes from worker to driver, one for each request, in the same order. After one with an error no
// other follows.
struct WorkReply {
  std::uint64_t id = 0;
  AnyResult what;
  std::optional<RankError> error;  // of a simulation; a rank's is in its RankResult
  std::string output;              // standard output and error since the last reply, bounded
  std::int64_t elapsed_ns = 0;
  std::vector<NotedCall> entered = {};  // collectives in order; only the first ones of very many
  SharedPayload payload = {};           // of this message, if its tensors came in shared memory
};

SharedFrame encode(const ZygoteRequest&, std::vector<std::shared_ptr<const UniqueFd>> fds = {});
SharedFrame encode(const ZygoteEvent&);
SharedFrame encode_request(std::uint64_t id, const AnyRequest&, const ExpectedValues* = nullptr);
// `expected` is that of the request; its tensors are not sent back.
SharedFrame encode(const WorkReply&, const SharedPayload* expected = nullptr);

Decoded<ZygoteRequest> decode_zygote_request(const Frame&);
Decoded<ZygoteEvent> decode_zygote_event(const Frame&);
Decoded<WorkRequest> decode_request(const Frame&);
Decoded<WorkReply> decode_reply(const Frame&, const SharedPayload* expected = nullptr);

}  // namespace distgrad
