// distgrad-rank: the program that simulates and whose processes are the ranks. Started by the driver as a zygote, or by a
// user who wants to know which of the backend's collectives are right.
#include <ATen/Parallel.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "backends/self_test.h"
#include "base/child_process.h"
#include "rank/runner.h"
#include "rank/self_test_process.h"
#include "rank/simulated_fuzz.h"
#include "rank/simulator.h"
#include "rank/zygote.h"

namespace {

distgrad::WorkerFunctions torch_functions() {
  distgrad::WorkerFunctions functions;
  functions.torch = distgrad::torch_version();
  functions.start = [] { at::set_num_threads(1); };
  functions.simulate = distgrad::simulate;
  functions.make_runner = [](int rank, int world_size, distgrad::Board* board) -> distgrad::RunCase {
    auto runner = std::make_shared<distgrad::Runner>(rank, world_size, board);
    return [runner](const distgrad::RunRequest& request) { return runner->run(request); };
  };
  return functions;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--self-test") == 0) return distgrad::run_self_test();
  if (argc == 3 && std::strcmp(argv[1], "--simulated-fuzz") == 0)
    return distgrad::run_simulated_fuzz(argv[2], distgrad::kInheritedFd);
  if (argc == 3 && std::strcmp(argv[1], "--zygote") == 0) {
    const std::string_view text = argv[2];
    int fd = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd);
    if (error == std::errc() && end == text.data() + text.size() && fd >= 0)
      distgrad::be_zygote(fd, torch_functions());
  }
  std::fprintf(stderr,
               "distgrad-rank is started by distgrad (see docs/protocol.md).\n"
               "usage: distgrad-rank --self-test | --zygote FD | --simulated-fuzz JOB\n");
  return 2;
}
