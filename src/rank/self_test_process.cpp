#include "rank/self_test_process.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

#include "model/backends.h"
#include "rank/backends/backend_on_rank.h"
#include "rank/backends/meeting.h"
#include "rank/backends/self_test.h"

namespace distgrad {
namespace {

BackendTraits everything() {
  BackendTraits traits;
  traits.untested = true;
  return traits;
}

int one_rank(const std::string& backend, int rank, std::atomic<int>& port) {
  try {
    if (backend != "gloo") preload(backend + " on cuda");  // before torch asks for CUDA
    at::set_num_threads(1);
    c10d::TCPStoreOptions options;
    options.isServer = rank == 0;
    options.waitWorkers = false;
    if (rank == 0) {
      StoreListener listener = listen_for_ranks();
      options.port = listener.port;
      options.masterListenFd = listener.socket.release();
    }
    while (rank != 0 && port == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank != 0) options.port = static_cast<std::uint16_t>(port.load());
    auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    if (rank == 0) port = store->getPort();
    BackendOnRank with(backend, backend == "gloo" ? "cpu" : "cuda", rank, kSelfTestRanks);
    with.set_traits(everything());
    const BackendTraits found = self_test(*with.connect(store, rank, kSelfTestRanks, "self-test"));
    if (rank == 0) std::printf("%s\n", to_json(found, backend).c_str());
    std::fflush(stdout);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "distgrad-rank: the self-test failed on rank %d: %s\n", rank, e.what());
    return 3;
  }
}

}  // namespace

int run_self_test(const std::string& backend) {
  setenv(kShareGpuVariable, "1", 0);  // one GPU is enough for this
  void* page = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 3;
  auto& port = *new (page) std::atomic<int>(0);
  for (int rank = 0; rank < kSelfTestRanks; ++rank) {
    const pid_t child = fork();
    if (child != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A hang is a failure, too. Ranks that share a GPU take turns.
    alarm(backend == "gloo" ? 60 : 240);
    _exit(one_rank(backend, rank, port));
  }
  int worst = 0, status = 0;
  while (wait(&status) > 0)
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) worst = 3;
  return worst;
}

}  // namespace distgrad
