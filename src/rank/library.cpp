#include "rank/library.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/child_process.h"
#include "base/whole_number.h"
#include "protocol/messages.h"
#include "rank/backends/backend_on_rank.h"
#include "rank/backends/self_test.h"
#include "rank/noted_calls.h"
#include "rank/probe.h"
#include "rank/python_operators.h"
#include "rank/reused_memory.h"
#include "rank/runner.h"
#include "rank/self_test_process.h"
#include "rank/simulated_fuzz.h"
#include "rank/simulator.h"
#include "rank/zygote.h"

namespace {

distgrad::WorkerFunctions torch_functions() {
  distgrad::WorkerFunctions functions;
  functions.torch = distgrad::torch_version();
  functions.takes_expected = true;
  functions.start = [] { at::set_num_threads(1); };
  functions.simulate = [](const distgrad::SimulateRequest& request) {
    const distgrad::ReusedMemory memory;
    return distgrad::simulate(request);
  };
  functions.make_runner = [](int rank, int world_size,
                             distgrad::Board* board) -> distgrad::RunCase {
    auto runner = std::make_shared<distgrad::Runner>(rank, world_size, board);
    return [runner](const distgrad::RunRequest& request, const distgrad::ExpectedValues* expected) {
      const distgrad::ReusedMemory memory;
      return runner->run(request, expected);
    };
  };
  functions.take_entered = distgrad::NotedCalls::take_entered;
  return functions;
}

// Returns the descriptor of "--zygote FD", or -1 if it is none.
int descriptor_of(std::string_view text) { return distgrad::whole_number<int>(text).value_or(-1); }

// Holds what an answer gives.
struct Reply {
  std::string header;
  std::shared_ptr<std::vector<double>> data;
};

distgrad::WorkReply answered(DistgradAnswer answer, const distgrad::Frame& request) {
  Reply reply;
  answer(request.header.data(), request.header.size(), request.payload.data(),
         request.payload.size(), &reply);
  distgrad::Frame frame;
  frame.header = std::move(reply.header);
  if (reply.data) frame.payload = *reply.data;
  frame.keeper = std::move(reply.data);
  distgrad::Decoded<distgrad::WorkReply> decoded = distgrad::decode_reply(frame);
  if (!decoded.value) throw std::runtime_error("the reply cannot be read: " + decoded.error);
  if (auto* result = std::get_if<distgrad::RankResult>(&decoded.value->what))
    result->observed = distgrad::take_observed();
  return std::move(*decoded.value);
}

}  // namespace

int distgrad_rank_zygote(int control, int (*fork)(), DistgradStart* start) try {
  distgrad::WorkerFunctions functions;
  functions.torch = distgrad::torch_version();
  functions.fork = fork;
  std::optional<distgrad::WorkerStart> worker =
      distgrad::serve_zygote(distgrad::UniqueFd(control), functions);
  if (!worker) return 0;
  *start = {worker->role == distgrad::WorkerRole::kSimulator,
            worker->rank,
            worker->world_size,
            worker->socket.release(),
            worker->board.release(),
            worker->output.release(),
            !worker->transport.empty()};
  return 1;
} catch (const std::exception& e) {  // no exception may reach C, and no zygote goes on after one
  std::fprintf(stderr, "%s\n", e.what());
  std::fflush(nullptr);
  _exit(1);
}

void distgrad_rank_reply(void* reply, const char* header, size_t bytes, const double* data,
                         size_t count) {
  auto& given = *static_cast<Reply*>(reply);
  given.header.assign(header, bytes);
  given.data = std::make_shared<std::vector<double>>(data, data + count);
}

int distgrad_rank_work(const DistgradStart* start, void (*begin)(), DistgradAnswer answer) {
  distgrad::WorkerFunctions functions;
  functions.start = begin;
  functions.answer = [answer](const distgrad::Frame& frame, distgrad::RankSlot& slot) {
    distgrad::keep_place_in(&slot);
    return answered(answer, frame);
  };
  using distgrad::UniqueFd, distgrad::WorkerRole;
  return distgrad::run_worker(
      {start->is_simulator ? WorkerRole::kSimulator : WorkerRole::kRank, start->rank,
       start->world_size, UniqueFd(start->socket), UniqueFd(start->board), UniqueFd(start->output),
       start->uses_gpu ? "a GPU" : ""},
      functions);
}

int distgrad_rank_main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "--self-test" && argc <= 3)
    return distgrad::run_self_test(argc == 3 ? argv[2] : "gloo");
  if (what == "--probe" && argc == 2) return distgrad::run_probe(distgrad::Thoroughness::kQuick);
  if (what == "--probe" && argc == 3 && std::string_view(argv[2]) == "--load")
    return distgrad::run_probe(distgrad::Thoroughness::kLoad);
  if (what == "--simulated-fuzz" && argc == 3)
    return distgrad::run_simulated_fuzz(argv[2], distgrad::kInheritedFd);
  if (auto start = distgrad::worker_of_arguments(argc, argv)) {
    distgrad::preload(start->transport);
    distgrad::be_worker(std::move(*start), torch_functions());
  }
  if (what == "--zygote" && argc == 3 && descriptor_of(argv[2]) >= 0)
    distgrad::be_zygote(descriptor_of(argv[2]), torch_functions());
  std::fprintf(stderr,
               "distgrad-rank is started by distgrad (see docs/protocol.md).\n"
               "usage: distgrad-rank --self-test [gloo|nccl] | --probe [--load] | --zygote FD | "
               "--simulated-fuzz JOB | --worker RANK WORLD_SIZE FD FD FD TRANSPORT\n");
  return 2;
}
