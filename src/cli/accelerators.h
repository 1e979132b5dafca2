// Knows the GPUs of this machine and the backends that need them, as distgrad-rank sees them. It is
// asked once, and only if a case wants one, so runs on the CPU pay nothing.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

// Holds what `distgrad-rank --probe` prints (rank/probe.h).
struct Probe {
  std::string cuda_unavailable;      // why no GPU can be used; empty if one can
  std::vector<std::string> devices;  // the GPUs' names
  std::string driver;                // CUDA versions; empty if there is none
  std::string runtime;
  std::string nccl_unavailable;  // why NCCL cannot be used, a missing GPU included
  bool nccl_needs_cuda = true;   // a library that stands in for it may not
  std::string nccl_version;      // "NCCL 2.30.7"; empty if it was not loaded
  std::string nccl_traits;       // how its right collectives are known: "self-test" or "sources"
  std::string nccl_library;      // its path
};

// With `load` it loads the libraries even if nothing could run, to check that they are intact,
// which takes a second. A failure to ask counts as unavailable.
Probe probe_accelerators(const std::string& rank_executable, bool load);

class Accelerators {
 public:
  // `known` replaces the answer, for tests.
  explicit Accelerators(bool share_gpu, std::optional<Probe> known = {})
      : share_gpu_(share_gpu), probe_(std::move(known)) {}

  // Returns why this case, which wants a GPU or another backend than Gloo, cannot run here, or "".
  std::string why_unavailable(const Case& which);

 private:
  std::string why_too_few(const Case& which) const;

  bool share_gpu_;
  std::optional<Probe> probe_;
};

}  // namespace distgrad
