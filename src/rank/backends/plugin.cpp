#include "rank/backends/plugin.h"

#include <dlfcn.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>

namespace distgrad {
namespace {

std::string variable_of(std::string backend) {
  std::transform(backend.begin(), backend.end(), backend.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return "DISTGRAD_" + backend + "_LIBRARY";
}

const BackendPlugin& opened(const std::string& backend) {
  check_plugin_is_there(backend);
  const std::string path = plugin_path(backend);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw UnavailableBackend(path + " cannot be loaded: " + dlerror());
  const auto entry =
      reinterpret_cast<const BackendPlugin* (*)()>(dlsym(library, "distgrad_backend_plugin"));
  if (!entry)
    throw UnavailableBackend(path +
                             " is no backend of distgrad's: it lacks distgrad_backend_plugin");
  const BackendPlugin& plugin = *entry();
  if (plugin.layout != kPluginLayout || std::string(plugin.torch) != TORCH_VERSION)
    throw UnavailableBackend(path + " was built with another distgrad or torch (" + plugin.torch +
                             ", not " + TORCH_VERSION + ")");
  if (const std::string why = plugin.unfit ? plugin.unfit() : ""; !why.empty())
    throw UnavailableBackend(path + " cannot be used: " + why);
  return plugin;
}

}  // namespace

std::string plugin_path(const std::string& backend) {
  if (const char* given = std::getenv(variable_of(backend).c_str()); given && *given) return given;
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (self.parent_path() / ("libdistgrad-" + backend + ".so")).string();
}

void check_plugin_is_there(const std::string& backend) {
  const std::string path = plugin_path(backend);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw UnavailableBackend("this build has no " + backend + ": there is no " + path +
                             " (distgrad was built where there was no GPU driver, or without the "
                             "headers that it needs; DISTGRAD_NCCL=ON builds it anywhere)");
}

const BackendPlugin& load_plugin(const std::string& backend) {
  static std::map<std::string, const BackendPlugin*> loaded;
  const BackendPlugin*& plugin = loaded[backend];
  if (!plugin) plugin = &opened(backend);
  return *plugin;
}

}  // namespace distgrad
