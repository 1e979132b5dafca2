#include "rank/probe.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "rank/backends/cuda.h"
#include "rank/backends/plugin.h"
#include "rank/backends/self_test.h"
#include "rank/backends/traits_file.h"

namespace distgrad {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson cuda_json(const CudaMachine& machine) {
  OrderedJson json;
  json["unavailable"] = machine.unavailable;
  json["devices"] = machine.devices;
  json["driver"] = machine.driver;
  json["runtime"] = machine.runtime;
  return json;
}

OrderedJson nccl_json(const CudaMachine& machine, Thoroughness how) {
  OrderedJson json;
  json["library"] = plugin_path("nccl");
  json["traits"] = read_traits("nccl").source;
  const bool stands_in = std::getenv("DISTGRAD_NCCL_LIBRARY") != nullptr;  // its library may need
                                                                           // no GPU
  const bool loads = how == Thoroughness::kLoad || machine.unavailable.empty() || stands_in;
  std::string unavailable;
  bool needs_cuda = true;
  try {
    if (!loads) check_plugin_is_there("nccl");
    if (loads) {
      const BackendPlugin& plugin = load_plugin("nccl");
      needs_cuda = plugin.device == at::kCUDA;
      json["version"] = plugin.version();
    }
  } catch (const UnavailableBackend& e) {
    unavailable = e.what();
  }
  if (unavailable.empty() && needs_cuda) unavailable = machine.unavailable;
  json["device"] = needs_cuda ? "cuda" : "cpu";
  json["unavailable"] = unavailable;
  return json;
}

}  // namespace

int run_probe(Thoroughness how) {
  const CudaMachine machine = find_cuda();
  OrderedJson json;
  json["torch"] = torch_version();
  json["cuda"] = cuda_json(machine);
  json["nccl"] = nccl_json(machine, how);
  std::printf("%s\n", json.dump(1).c_str());
  return 0;
}

}  // namespace distgrad
