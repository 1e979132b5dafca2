// Operators in which one rank does something else than the others: what test_faults_in_cpp.py
// plants into ranks without Python. Each is registered as PHASE_FAULT_RANK.
#include <signal.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace {

struct Place {
  c10d::ProcessGroup& group;
  at::Tensor t;

  int other(int by) const { return (group.getRank() + by + group.getSize()) % group.getSize(); }
};

using Deed = void (*)(const Place&);

at::Tensor reduction_of(const Place& p, const at::Tensor& t, c10d::ReduceOp op) {
  std::vector<at::Tensor> tensors = {t.contiguous().clone()};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  p.group.allreduce(tensors, options)->wait();
  return tensors[0];
}

at::Tensor sum_of(const Place& p, const at::Tensor& t) {
  return reduction_of(p, t, c10d::ReduceOp::SUM);
}

void broadcast_from(const Place& p, int root) {
  std::vector<at::Tensor> tensors = {p.t.clone()};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  p.group.broadcast(tensors, options)->wait();
}

void sum(const Place& p) { sum_of(p, p.t); }
void half(const Place& p) { sum_of(p, p.t.slice(0, 0, 2)); }
void integers(const Place& p) { sum_of(p, p.t.to(at::kInt)); }
// As large as what the others give, so that nothing breaks.
void large_integers(const Place& p) { sum_of(p, p.t.to(at::kLong)); }
void maximum(const Place& p) { reduction_of(p, p.t, c10d::ReduceOp::MAX); }

void gather(const Place& p) {
  std::vector<at::Tensor> own = {p.t.clone()};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int r = 0; r < p.group.getSize(); ++r) all[0].push_back(at::empty_like(p.t));
  p.group.allgather(all, own)->wait();
}

void from_first(const Place& p) { broadcast_from(p, 0); }
void from_second(const Place& p) { broadcast_from(p, 1); }
void barrier(const Place& p) { p.group.barrier()->wait(); }

void wait_for_a_message(const Place& p) {
  std::vector<at::Tensor> tensors = {p.t.clone()};
  p.group.recv(tensors, p.other(1), 0)->wait();
}

// In a group of which distgrad knows nothing.
void wait_in_a_group_of_its_own(const Place& p) {
  static auto own = [&] {
    auto group = c10::make_intrusive<c10d::ProcessGroup>(p.group.getRank(), p.group.getSize());
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                      p.group.getBackend(at::kCPU));
    return group;
  }();
  wait_for_a_message({*own, p.t});
}

void raise_error(const Place&) { throw std::runtime_error("planted"); }
void abort_here(const Place&) { std::abort(); }
void kill_here(const Place&) { raise(SIGKILL); }
void segfault(const Place&) { raise(SIGSEGV); }
void stop(const Place&) { raise(SIGSTOP); }
void end(const Place&) { _exit(7); }
void end_well(const Place&) { std::exit(0); }
void be_asleep(const Place&) {
  for (;;) sleep(10'000);
}
void spin(const Place&) {
  for (volatile bool goes_on = true; goes_on;) {
  }
}
void nap(const Place&) { sleep(1); }

struct Fault {
  std::vector<Deed> others, odd;
};

const std::map<std::string, Fault> kFaults = {
    {"order", {{sum, gather}, {gather, sum}}},
    {"kind", {{sum, gather}, {from_first, gather}}},

    {"shape", {{sum, gather}, {half, gather}}},
    {"dtype", {{sum, gather}, {integers, gather}}},
    {"op", {{sum, gather}, {maximum, gather}}},
    {"bits", {{sum, gather}, {large_integers, gather}}},
    {"root", {{from_first}, {from_second}}},
    {"barrier", {{sum, gather}, {barrier, gather}}},
    {"skips", {{sum, gather}, {gather}}},
    {"leaves", {{sum, gather}, {}}},
    {"leavesearly", {{sum, gather}, {sum}}},
    {"onemore", {{sum, gather}, {sum, gather, sum}}},
    {"unsent", {{sum, gather}, {wait_for_a_message, sum, gather}}},
    {"elsewhere", {{sum, gather}, {wait_in_a_group_of_its_own, sum, gather}}},
    {"raises", {{sum, gather}, {raise_error}}},
    {"raisesbetween", {{sum, gather}, {sum, raise_error}}},
    {"exits", {{sum, gather}, {end_well}}},
    {"ends", {{sum, gather}, {end}}},
    {"killed", {{sum, gather}, {kill_here}}},
    {"segfault", {{sum, gather}, {segfault}}},
    {"aborts", {{sum, gather}, {sum, abort_here}}},
    {"stopped", {{sum, gather}, {stop, sum, gather}}},
    {"asleep", {{sum, gather}, {sum, be_asleep}}},
    {"spins", {{sum, gather}, {spin}}},
    // Nothing is wrong with these.
    {"right", {{sum, gather}, {sum, gather}}},
    {"slow", {{sum, gather}, {nap, sum, gather}}},
};

void act(const std::string& fault, std::int64_t odd, const at::Tensor& t,
         const std::string& group) {
  const Place place{*c10d::resolve_process_group(group), t.detach().clone()};
  const Fault& what = kFaults.at(fault);
  for (const Deed deed : place.group.getRank() == odd ? what.odd : what.others) deed(place);
}

struct Faulty : torch::autograd::Function<Faulty> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const std::string& group, const std::string& fault, std::int64_t odd,
                            bool in_backward) {
    if (!in_backward) act(fault, odd, x, group);
    const Place place{*c10d::resolve_process_group(group), x};
    ctx->saved_data["group"] = group;
    ctx->saved_data["fault"] = in_backward ? fault : "right";
    ctx->saved_data["odd"] = odd;
    return sum_of(place, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list g) {
    act(ctx->saved_data["fault"].toStringRef(), ctx->saved_data["odd"].toInt(), g[0],
        ctx->saved_data["group"].toStringRef());
    const Place place{*c10d::resolve_process_group(ctx->saved_data["group"].toStringRef()), g[0]};
    return {sum_of(place, g[0]), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY(faulty, m) {
  for (const bool in_backward : {false, true})
    for (const auto& [fault, what] : kFaults)
      for (std::int64_t odd = 0; odd < 4; ++odd) {
        const std::string name =
            (in_backward ? "backward_" : "forward_") + fault + "_" + std::to_string(odd);
        const auto run = [fault = fault, odd, in_backward](const at::Tensor& x,
                                                           std::string group_name) {
          return Faulty::apply(x, group_name, fault, odd, in_backward);
        };
        m.def((name + "(Tensor x, str group_name) -> Tensor").c_str(), run);
      }
}
