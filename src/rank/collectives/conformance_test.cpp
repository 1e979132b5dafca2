// Every backend on every device that is found: each collective, op, dtype and kind of group on real
// processes, forward and adjoint, against plain arithmetic (plain_arithmetic.h). What cannot run
// here is skipped with the reason.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "model/backends.h"
#include "rank/backends/backend_on_rank.h"
#include "rank/backends/cuda.h"
#include "rank/backends/plugin.h"
#include "rank/backends/self_test.h"
#include "rank/collectives/plain_arithmetic.h"
#include "rank/collectives/random_call.h"

namespace distgrad {
namespace {

using testing::Sample;

constexpr unsigned kLongest = 240;  // seconds, a hang included

// What a child process writes to its pipe; this process itself must neither start a thread nor
// touch CUDA.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(kLongest);
      std::string said;
      try {
        said = work();
      } catch (const std::exception& e) {
        said = std::string("raised: ") + e.what();
      }
      said = said.substr(0, 8000);
      _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
    }
    close(ends[1]);
    reader_ = ends[0];
  }

  std::string said() {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(reader_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    close(reader_);
    int status = 0;
    waitpid(pid_, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      text += "ended by wait status " + std::to_string(status);
    return text;
  }

 private:
  pid_t pid_ = 0;
  int reader_ = -1;
};

struct Setting {
  std::string backend;
  std::string device;
  int world_size = 3;
  std::vector<std::vector<int>> groups;  // ranks in group order, each rank in one
  at::ScalarType type = at::kDouble;
  bool zeros_and_ties = false;
};

c10::intrusive_ptr<c10d::Store> meet(int rank, std::atomic<int>& port) {
  c10d::TCPStoreOptions options;
  options.isServer = rank == 0;
  options.waitWorkers = false;
  while (rank != 0 && port == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  options.port = static_cast<std::uint16_t>(port.load());
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  if (rank == 0) port = store->getPort();
  return store;
}

// The tolerance is relative to the operands, which are at most kLargest, where the result is less:
// terms may cancel.
std::string difference(const Plain& got, const Plain& expected, double tolerance) {
  constexpr double kLargest = 5;
  if (got.shape != expected.shape) return "another shape";
  for (std::size_t e = 0; e < got.values.size(); ++e)
    if (!(std::fabs(got.values[e] - expected.values[e]) <=
          tolerance * std::max(kLargest, std::fabs(expected.values[e]))))
      return "element " + std::to_string(e) + " is " + std::to_string(got.values[e]) + ", not " +
             std::to_string(expected.values[e]);
  return {};
}

std::string run_sample(const Sample& sample, Connection& group, at::ScalarType type,
                       double tolerance) {
  const Call call{&sample.spec, group.size()};
  const Collective& record = collective(sample.spec.kind);
  std::vector<Plain> operands, cotangents;
  for (const at::Tensor& x : sample.operands) operands.push_back(plain_of(x));
  const std::vector<Plain> outputs = plain_outputs(call, operands);
  std::vector<at::Tensor> like;
  for (const Plain& y : outputs) like.push_back(at::empty(y.shape, type));
  const std::vector<at::Tensor> starts = testing::cotangents_for(like);
  for (const at::Tensor& g : starts) cotangents.push_back(plain_of(g));

  SavedForBackward saved;
  saved.operand = sample.operands[group.rank()].to(group.device());
  const at::Tensor output = record.forward(call, group, saved.operand, saved);
  saved.output = output;
  const at::Tensor gradient =
      record.backward(call, group, saved, starts[group.rank()].to(group.device()));
  std::string said;
  if (const auto d = difference(plain_of(output), outputs[group.rank()], tolerance); !d.empty())
    said += sample.name + ", forward: " + d + "\n";
  const Plain expected = plain_adjoint(call, operands, cotangents)[group.rank()];
  if (const auto d = difference(plain_of(gradient), expected, tolerance); !d.empty())
    said += sample.name + ", adjoint: " + d + "\n";
  return said;
}

double unit_roundoff(at::ScalarType type) {
  return type == at::kDouble  ? 0x1p-53
         : type == at::kFloat ? 0x1p-24
         : type == at::kHalf  ? 0x1p-11
                              : 0x1p-8;
}

// As the executable's own table does: what the self-test finds wrong is composed.
void use_what_is_right(BackendOnRank& backend, const c10::intrusive_ptr<c10d::Store>& store,
                       int rank, int size) {
  BackendTraits everything;
  everything.untested = true;
  backend.set_traits(everything);
  const auto world = backend.connect(c10::make_intrusive<c10d::PrefixStore>("self-test", store),
                                     rank, size, "self-test");
  backend.set_traits(self_test(*world));
}

std::string run_rank(const Setting& setting, int rank, std::atomic<int>& port) {
  BackendOnRank backend(setting.backend, setting.device, rank, setting.world_size);
  const auto store = meet(rank, port);
  if (setting.world_size > 1) use_what_is_right(backend, store, rank, setting.world_size);
  const auto& ranks =
      *std::find_if(setting.groups.begin(), setting.groups.end(),
                    [&](const auto& g) { return std::find(g.begin(), g.end(), rank) != g.end(); });
  const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  const std::string name = "group of " + std::to_string(ranks[0]);
  const auto group =
      backend.connect(c10::make_intrusive<c10d::PrefixStore>(name, store), place, size, name);
  std::string said;
  for (const Sample& sample : testing::samples(size, setting.type, setting.zeros_and_ties)) {
    // A third and a cotangent shared between ties are not exact; the rest is, in every dtype. NCCL
    // multiplies by a third, in the dtype, before it adds: size + 1 roundings for each element.
    const bool inexact = sample.spec.op == ReduceOp::kAvg || setting.zeros_and_ties;
    said += run_sample(sample, *group, setting.type,
                       inexact ? (size + 1) * unit_roundoff(setting.type) : 0);
  }
  group->all_reduce(at::ones({1}, at::TensorOptions(at::kDouble).device(group->device())),
                    ReduceOp::kSum);  // nobody leaves early
  return said;
}

void expect_conformance(const Setting& setting) {
  void* page = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& port = *new (page) std::atomic<int>(0);
  std::vector<Child> ranks;
  for (int rank = 0; rank < setting.world_size; ++rank)
    ranks.emplace_back([&, rank] { return run_rank(setting, rank, port); });
  for (int rank = 0; rank < setting.world_size; ++rank)
    EXPECT_EQ(ranks[rank].said(), "")
        << "rank " << rank << " of " << setting.world_size << ", " << c10::toString(setting.type);
  munmap(page, sizeof(std::atomic<int>));
}

struct BackendDevice {
  std::string backend;
  std::string device;
};

class Conformance : public ::testing::TestWithParam<BackendDevice> {
 protected:
  void SetUp() override {
    setenv(kShareGpuVariable, "1", 1);
    if (GetParam().device != "cuda") return;
    std::string why = Child([] { return find_cuda().unavailable; }).said();
    if (why.empty() && GetParam().backend != "gloo")
      why = Child([] {
              try {
                load_plugin(GetParam().backend);
              } catch (const UnavailableBackend& e) {
                return std::string(e.what());
              }
              return std::string();
            }).said();
    if (!why.empty())
      GTEST_SKIP() << GetParam().backend << " on " << GetParam().device << ": " << why;
  }

  void check(int world_size, const std::vector<std::vector<int>>& groups, at::ScalarType type,
             bool zeros_and_ties = false) {
    expect_conformance(
        {GetParam().backend, GetParam().device, world_size, groups, type, zeros_and_ties});
  }
};

TEST_P(Conformance, EveryDtype) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    check(3, {{0, 1, 2}}, type);
}

TEST_P(Conformance, ZerosAndTies) { check(3, {{0, 1, 2}}, at::kDouble, true); }

TEST_P(Conformance, GroupsInAnyOrderAndOfAnySize) {
  check(4, {{3, 0, 1}, {2}}, at::kDouble);
  check(4, {{2, 0}, {1, 3}}, at::kFloat);
}

TEST_P(Conformance, OneRank) { check(1, {{0}}, at::kDouble); }

INSTANTIATE_TEST_SUITE_P(, Conformance,
                         ::testing::Values(BackendDevice{"gloo", "cpu"},
                                           BackendDevice{"gloo", "cuda"},
                                           BackendDevice{"nccl", "cuda"}),
                         [](const auto& one) {
                           return one.param.backend + "_on_" + one.param.device;
                         });

}  // namespace
}  // namespace distgrad
