#include "rank/bench/bare_loops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "rank/backends/gloo.h"

namespace distgrad::bench {
namespace {

constexpr int kMostRanks = 64;

struct Shared {
  std::atomic<int> port{0};
  double seconds[kMostRanks];
  long peak_kib[kMostRanks];
};

c10::intrusive_ptr<c10d::Backend> connected(int rank, int ranks, Shared& shared) {
  c10d::TCPStoreOptions options;
  options.isServer = rank == 0;
  options.waitWorkers = false;
  options.port = 0;
  while (rank != 0 && shared.port == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  if (rank != 0) options.port = static_cast<std::uint16_t>(shared.port.load());
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  if (rank == 0) shared.port = store->getPort();
  return connect_gloo(store, rank, ranks);
}

void one_rank(int rank, int ranks, int count, std::int64_t elements, Shared& shared) {
  at::set_num_threads(1);
  const auto group = connected(rank, ranks, shared);
  const auto all_reduced = [&](at::Tensor x) {
    std::vector<at::Tensor> tensors{std::move(x)};
    group->allreduce(tensors)->wait();
    return tensors[0];
  };
  const at::Tensor x = at::ones({elements}, at::kDouble);
  const at::Tensor cotangent = at::ones({elements}, at::kDouble);
  all_reduced(x.clone());  // warm
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    all_reduced(x.clone());
    all_reduced(cotangent.clone());
  }
  shared.seconds[rank] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  shared.peak_kib[rank] = usage.ru_maxrss;
}

}  // namespace

double bare_gloo_seconds(int ranks, int count, std::int64_t elements, long* peak_kib) {
  void* page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || ranks > kMostRanks)
    throw std::runtime_error("no shared memory, or too many ranks");
  auto& shared = *new (page) Shared;
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    one_rank(rank, ranks, count, elements, shared);
    _exit(0);
  }
  while (wait(nullptr) > 0) {
  }
  const double slowest = *std::max_element(shared.seconds, shared.seconds + ranks);
  if (peak_kib) *peak_kib = *std::max_element(shared.peak_kib, shared.peak_kib + ranks);
  munmap(page, sizeof(Shared));
  return slowest;
}

}  // namespace distgrad::bench
