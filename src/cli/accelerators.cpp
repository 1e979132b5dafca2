#include "cli/accelerators.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/captured_child.h"
#include "base/lines.h"
#include "launched/leader.h"
#include "model/subject_text.h"
#include "pool/worker_pool.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr int kCountingTimeout = 120;  // seconds; libtorch_cuda on a cold disk takes a while

// c10d's Gloo copies the tensors of a collective through the host's memory, but passes the address
// of a tensor that it sends, on a GPU or not, to the socket (ProcessGroupGloo::send and recv).
std::string why_gloo_cannot(const Case& which) {
  const bool is_sent = std::any_of(which.scenario->steps.begin(), which.scenario->steps.end(),
                                   [&](const Step& step) {
                                     const CollectiveCall* call = step.collective();
                                     return call && call->kind == CollectiveKind::kSendRecv &&
                                            subject_for(which.subject, call->kind) == "in_place";
                                   });
  return is_sent ? "c10d's gloo can neither send nor receive tensors on a GPU" : "";
}

}  // namespace

Probe probe_accelerators(const std::string& rank_executable, bool load) {
  ChildCommand command;
  command.arguments = {rank_executable, "--probe"};
  if (load) command.arguments.push_back("--load");
  const CapturedChild child = run_captured(command, kCountingTimeout);
  const std::size_t begin = std::min(child.text.find("{\n"), child.text.size());
  const nlohmann::json found =
      nlohmann::json::parse(child.text.substr(begin), nullptr, /*allow_exceptions=*/false);
  Probe probe;
  if (!child.ok() || !found.is_object() || !found.contains("cuda") || !found.contains("nccl")) {
    probe.cuda_unavailable =
        child.timed_out ? fmt::format("looking for GPUs did not end within {} s", kCountingTimeout)
                        : "looking for GPUs failed: " + last_line(child.text);
    probe.nccl_unavailable = probe.cuda_unavailable;
    return probe;
  }
  const nlohmann::json& cuda = found["cuda"];
  probe.cuda_unavailable = cuda.value("unavailable", "");
  probe.devices = cuda.value("devices", std::vector<std::string>());
  probe.driver = cuda.value("driver", "");
  probe.runtime = cuda.value("runtime", "");
  const nlohmann::json& nccl = found["nccl"];
  probe.nccl_unavailable = nccl.value("unavailable", "");
  probe.nccl_needs_cuda = nccl.value("device", "cuda") == "cuda";
  probe.nccl_version = nccl.value("version", "");
  probe.nccl_traits = nccl.value("traits", "");
  probe.nccl_library = nccl.value("library", "");
  return probe;
}

std::string Accelerators::why_unavailable(const Case& which) {
  if (!probe_) probe_ = probe_accelerators(rank_executable(), false);
  if (which.backend != "nccl") {
    if (!probe_->cuda_unavailable.empty() || which.device != "cuda" || !which.scenario)
      return probe_->cuda_unavailable;
    return why_gloo_cannot(which);
  }
  // A Python interpreter brings its own NCCL, inside its torch.
  const bool in_python = is_python_subject(which.subject);
  const std::string& why = in_python ? probe_->cuda_unavailable : probe_->nccl_unavailable;
  if (!why.empty()) return why;
  return in_python || probe_->nccl_needs_cuda ? why_too_few(which) : "";
}

// NCCL needs a GPU for each rank, Gloo does not.
std::string Accelerators::why_too_few(const Case& which) const {
  const auto count = static_cast<int>(probe_->devices.size());
  // A launcher's ranks are on several hosts, which are assumed to be alike.
  const int local_size = leader() ? leader()->world().local_size : 0;
  const int ranks_here = local_size > 0 ? std::min(local_size, which.world_size) : which.world_size;
  if (share_gpu_ || ranks_here <= count) return {};
  return fmt::format("{} need as many GPUs, and there {} {}; --share-gpu lets ranks share one",
                     count_text(static_cast<std::size_t>(ranks_here), "rank"),
                     count == 1 ? "is" : "are", count);
}

}  // namespace distgrad
