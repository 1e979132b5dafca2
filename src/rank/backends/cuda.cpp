#include "rank/backends/cuda.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>

#include "rank/backends/plugin.h"
#include "rank/backends/self_test.h"

namespace distgrad {
namespace {

// Calls the driver's and the runtime's stable C interfaces, as NVIDIA's reference manuals have them
// ("CUDA Driver API", "CUDA Runtime API"): every enumeration is an int, 0 is success.
template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::string version_text(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string torch_cuda_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0) return {};
  return (std::filesystem::path(info.dli_fname).parent_path() / "libtorch_cuda.so").string();
}

bool torch_has_cuda() {
  std::error_code ignored;
  return std::filesystem::exists(torch_cuda_path(), ignored);
}

std::string device_name(void* driver, int index) {
  const auto initialise = symbol<int(unsigned)>(driver, "cuInit");
  const auto device_of = symbol<int(int*, int)>(driver, "cuDeviceGet");
  const auto name_of = symbol<int(char*, int, int)>(driver, "cuDeviceGetName");
  int device = 0;
  char name[256] = {};
  if (!initialise || !device_of || !name_of || initialise(0) != 0 ||
      device_of(&device, index) != 0 || name_of(name, sizeof name - 1, device) != 0)
    return "GPU " + std::to_string(index);
  return name;
}

void look(CudaMachine& machine) {
  if (!torch_has_cuda()) {
    machine.unavailable = "torch " + torch_version() + " was built without CUDA";
    return;
  }
  // libtorch_cpu brings the runtime along in wheels that have CUDA.
  const auto count_devices = symbol<int(int*)>(RTLD_DEFAULT, "cudaGetDeviceCount");
  const auto error_text = symbol<const char*(int)>(RTLD_DEFAULT, "cudaGetErrorString");
  const auto runtime_version = symbol<int(int*)>(RTLD_DEFAULT, "cudaRuntimeGetVersion");
  int number = 0;
  if (runtime_version && runtime_version(&number) == 0) machine.runtime = version_text(number);
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
  if (!driver) {
    machine.unavailable = "no NVIDIA driver on this machine: libcuda.so.1 is not found";
    return;
  }
  const auto driver_version = symbol<int(int*)>(driver, "cuDriverGetVersion");
  if (driver_version && driver_version(&number) == 0) machine.driver = version_text(number);
  if (!count_devices || !error_text) {
    machine.unavailable = "the CUDA runtime of torch " + torch_version() + " is not found";
    return;
  }
  int count = 0;
  if (const int error = count_devices(&count); error != 0) {
    machine.unavailable = std::string("CUDA finds no GPU: ") + error_text(error);
    return;
  }
  for (int i = 0; i < count; ++i) machine.devices.push_back(device_name(driver, i));
  if (count == 0) machine.unavailable = "no GPU on this machine";
}

}  // namespace

CudaMachine find_cuda() {
  CudaMachine machine;
  look(machine);
  return machine;
}

void load_torch_cuda() {
  // Torch is not asked whether it has CUDA: if asked before libtorch_cuda is loaded, it says no for
  // the life of the process (ATen/detail/CUDAHooksInterface.cpp).
  static bool loaded = false;
  if (loaded) return;
  const std::string path = torch_cuda_path();
  if (!dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL))
    throw UnavailableBackend(path + " cannot be loaded: " + dlerror());
  loaded = true;
}

int cuda_device_count() { return static_cast<int>(at::detail::getCUDAHooks().getNumGPUs()); }

}  // namespace distgrad
