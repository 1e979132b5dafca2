// What a connection on a GPU does around a collective, with a backend and works of the test's own
// and torch's device without memory in the GPU's place: it waits for the end itself, and takes the
// group down in order or, after a failure, at once.
#include "rank/backends/torch_connection.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <stdexcept>
#include <string>
#include <vector>

namespace distgrad {
namespace {

using Calls = std::vector<std::string>;

struct Behaviour {
  int asked_before_done = 0;  // how often isCompleted() says no
  bool asking_fails = false;  // as the query of a CUDA event after an error of the device
  bool fails = false;         // found by isCompleted(), thrown by wait()
  bool start_fails = false;
  bool end_fails = false;  // abort() and shutdown() throw
};

class OneWork : public c10d::Work {
 public:
  OneWork(Behaviour& how, Calls& calls) : how_(how), calls_(calls) {}

  bool isCompleted() override {
    if (how_.asking_fails)
      throw std::runtime_error("CUDA error: an illegal memory access was encountered");
    return --how_.asked_before_done < 0;
  }
  bool wait(std::chrono::milliseconds) override {
    calls_.emplace_back(how_.asked_before_done < 0 ? "wait" : "wait too early");
    if (how_.fails) throw std::runtime_error("NCCL error");
    return true;
  }

 private:
  Behaviour& how_;
  Calls& calls_;
};

class OneBackend : public c10d::Backend {
 public:
  OneBackend(Behaviour& how, Calls& calls) : Backend(0, 2), how_(how), calls_(calls) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    if (how_.start_fails) throw std::runtime_error("NCCL error in: ncclCommInitRank");
    return c10::make_intrusive<OneWork>(how_, calls_);
  }
  void abort() override { end("abort"); }
  void shutdown() override { end("shutdown"); }

 private:
  void end(const char* how) {
    calls_.emplace_back(how);
    if (how_.end_fails) throw std::runtime_error("the communicator is gone");
  }

  Behaviour& how_;
  Calls& calls_;
};

// What was called, and what the collective threw, in order.
Calls life_of(Behaviour how, at::Device device = at::kMeta) {
  Calls calls;
  BackendTraits everything;
  everything.untested = true;
  {
    TorchEnd end{c10::make_intrusive<c10d::HashStore>(),
                 0,
                 2,
                 "test",
                 device,
                 c10d::ProcessGroup::BackendType::CUSTOM,
                 c10::make_intrusive<OneBackend>(how, calls)};
    const auto connection = make_torch_connection(std::move(end), everything);
    try {
      connection->all_reduce(at::ones({2}, at::TensorOptions(at::kDouble).device(device)),
                             ReduceOp::kSum);
    } catch (const std::exception& e) {
      calls.emplace_back(e.what());
    }
  }
  return calls;
}

TEST(TorchConnection, WaitsForTheEndAndThenShutsDown) {
  EXPECT_EQ(life_of({}), (Calls{"wait", "shutdown"}));
  EXPECT_EQ(life_of({.asked_before_done = 2100}),
            (Calls{"wait", "shutdown"}));  // the last ones asleep
}

TEST(TorchConnection, AbortsAfterAFailureWhereverItShows) {
  EXPECT_EQ(life_of({.fails = true}), (Calls{"wait", "NCCL error", "abort"}));
  EXPECT_EQ(life_of({.start_fails = true}), (Calls{"NCCL error in: ncclCommInitRank", "abort"}));
  EXPECT_EQ(life_of({.asking_fails = true}),
            (Calls{"CUDA error: an illegal memory access was encountered", "abort"}));
}

TEST(TorchConnection, AnEndThatFailsStaysQuiet) {
  EXPECT_EQ(life_of({.end_fails = true}), (Calls{"wait", "shutdown"}));
  EXPECT_EQ(life_of({.fails = true, .end_fails = true}), (Calls{"wait", "NCCL error", "abort"}));
}

// Gloo's own wait() blocks, and its groups end with their process.
TEST(TorchConnection, LeavesTheCpuToItsBackend) {
  EXPECT_EQ(life_of({.asked_before_done = 1}, at::kCPU), (Calls{"wait too early"}));
}

}  // namespace
}  // namespace distgrad
