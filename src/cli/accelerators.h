// The GPUs of this machine and the backends that need them, as distgrad-rank sees them. It is asked
// only where a case wants one, and once: runs on the CPU pay nothing.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

// Holds what `distgrad-rank --probe` prints (rank/probe.h).
struct Probe {
  std::string cuda_unavailable;      // why no GPU can be used; empty where one can
  std::vector<std::string> devices;  // the GPUs' names
  std::string driver;                // CUDA versions; empty where there is none
  std::string runtime;
  std::string nccl_unavailable;  // why NCCL cannot be used, a missing GPU included
  bool nccl_needs_cuda = true;   // a library that stands in for it need not
  std::string nccl_version;      // "NCCL 2.30.7"; empty where it was not loaded
  std::string nccl_traits;       // how what it does right is known: "self-test" or "sources"
  std::string nccl_library;      // its path
};

// `load`: also where nothing could run, to see whether the libraries are whole; this takes a
// second. A failure to ask counts as unavailable.
Probe probe_accelerators(const std::string& rank_executable, bool load);

class Accelerators {
 public:
  // `known`: what would be asked, for tests.
  explicit Accelerators(bool share_gpu, std::optional<Probe> known = {})
      : share_gpu_(share_gpu), probe_(std::move(known)) {}

  // Why this case, which wants a GPU or another backend than Gloo, cannot run here; "" where it
  // can.
  std::string why_unavailable(const Case& which);

 private:
  std::string why_too_few(const Case& which) const;

  bool share_gpu_;
  std::optional<Probe> probe_;
};

}  // namespace distgrad
