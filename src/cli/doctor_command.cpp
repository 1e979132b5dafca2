// distgrad doctor reports what was found, what is missing with the remedy, and a self-test of the
// backend's collectives.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/captured_child.h"
#include "base/error.h"
#include "base/lines.h"
#include "base/machine_needs.h"
#include "base/version.h"
#include "cli/accelerators.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/say.h"
#include "pool/worker_pool.h"
#include "report/words.h"
#include "verify/interpreters.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProbeTimeout = 90;  // seconds; loading torch from a cold disk takes a while

enum class Health { kFine, kNote, kMissing };

struct Line {
  Health health;
  std::string what;
  std::string text;
  std::string remedy;
};

// --- What is looked at ---

// The dynamic linker lists what it would load if this variable is set, as for ldd.
std::string torch_library(const std::string& executable) {
  ChildCommand command;
  command.arguments = {executable};
  command.environment = {{"LD_TRACE_LOADED_OBJECTS", "1"}};
  const std::string text = run_captured(command, kProbeTimeout).text;
  const std::size_t name = text.find("libtorch_cpu.so");
  if (name == std::string::npos) return {};
  const std::string line = text.substr(name, text.find('\n', name) - name);
  const std::size_t arrow = line.find("=> ");
  return arrow == std::string::npos ? line : line.substr(arrow + 3, line.rfind(" (") - arrow - 3);
}

// Returns the version of the torch that lib/libtorch_cpu.so belongs to, by its version.py, or "".
std::string version_of(const std::filesystem::path& library) {
  std::ifstream file(library.parent_path().parent_path() / "version.py");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("__version__")) continue;
    const std::size_t open = line.find_first_of("'\""), close = line.find_last_of("'\"");
    if (open < close) return line.substr(open + 1, close - open - 1);
  }
  return "";
}

Line torch_line(const std::string& executable) {
  const std::string library = torch_library(executable);
  if (library.empty() || library.find("not found") != std::string::npos)
    return {Health::kMissing, "torch", "libtorch_cpu.so is not found by distgrad-rank",
            fmt::format("put back the torch {} that distgrad was built with, or build it again",
                        release_of(kTorchVersion))};
  const std::string version = version_of(library);
  if (!version.empty() && release_of(version) != release_of(kTorchVersion))
    return {Health::kMissing, "torch", fmt::format("{} is torch {}", library, version),
            fmt::format("put back the torch {} that distgrad was built with, or build it again",
                        release_of(kTorchVersion))};
  return {Health::kFine, "torch", library, ""};
}

// Reports the interpreter of subjects in Python, unless --python names another.
Line python_line() {
  Interpreters interpreters;
  try {
    interpreters.find("");
  } catch (const UserError&) {
    return {Health::kNote, "python", "none with torch was found; only subjects in Python need one",
            "--python PATH names one"};
  }
  try {
    const Interpreter& found = interpreters.find_for_ranks("");
    return {Health::kFine, "python", fmt::format("{}, with torch {}", found.path, found.torch), ""};
  } catch (const UserError& another_torch) {
    return {Health::kNote, "python", another_torch.what(), ""};
  }
}

Line loopback_line() {
  if (has_loopback()) return {Health::kFine, "network", "loopback interface with 127.0.0.1", ""};
  return {Health::kMissing, "network", "no interface has 127.0.0.1, over which the ranks talk",
          "ip link set lo up"};
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

Line descriptors_line() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = fmt::format("{} open files (raised to {} where needed)",
                                       limit_text(limit.rlim_cur), limit_text(limit.rlim_max));
  constexpr rlim_t kEnough = 1024;  // some 8 for each rank of a large pool
  if (limit.rlim_max >= kEnough) return {Health::kFine, "limits", text, ""};
  return {Health::kMissing, "limits", text, "raise the hard limit: ulimit -Hn 4096"};
}

Line shared_memory_line() {
  struct statvfs status {};
  constexpr double kMiB = 1 << 20;
  if (::statvfs("/dev/shm", &status) != 0)
    return {Health::kNote, "memory", "/dev/shm is missing", ""};
  const double free = static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
  return {Health::kFine, "memory", fmt::format("/dev/shm has {:.0f} MiB free", free / kMiB), ""};
}

Line processors_line() {
  const std::string text = count_text(std::thread::hardware_concurrency(), "processor");
  return {Health::kFine, "machine", text, ""};
}

// --- The self-test ---

const std::map<std::string, std::string> kTorchDtypes = {
    {"Double", "float64"}, {"Float", "float32"}, {"BFloat16", "bfloat16"}, {"Half", "float16"}};

struct SelfTest {
  Line line;
  std::string table;
};

// Writes a line for what behaves alike of "all_reduce max Float", with the dtypes unless it is all
// of them.
std::string self_test_table(const Json& found) {
  std::vector<std::pair<std::string, std::string>> order;  // what, how
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> dtypes;
  std::map<std::string, std::size_t> kinds;  // dtypes of each
  for (const auto& [name, entry] : found.items()) {
    const std::size_t space = name.rfind(' ');
    const auto dtype = kTorchDtypes.find(space == std::string::npos ? "" : name.substr(space + 1));
    const std::string what = dtype == kTorchDtypes.end() ? name : name.substr(0, space);
    const std::string why = entry.value("why", "");
    const bool native = entry.value("native", false);
    const std::string how =
        native ? "right" : "composed of others" + (why.empty() ? "" : ": " + why);
    std::vector<std::string>& list = dtypes[{what, how}];
    if (list.empty()) order.emplace_back(what, how);
    list.push_back(dtype == kTorchDtypes.end() ? "" : dtype->second);
    ++kinds[what];
  }
  std::string out;
  for (const auto& line : order) {
    const std::vector<std::string>& list = dtypes[line];
    const std::string some =
        list.size() < kinds[line.first] ? fmt::format(" ({})", fmt::join(list, ", ")) : "";
    out += fmt::format("  {:20}{}{}\n", line.first, for_terminal(line.second), some);
  }
  return out;
}

SelfTest self_test(const std::string& executable, const std::string& backend) {
  ChildCommand command;
  command.arguments = {executable, "--self-test", backend};
  const CapturedChild child = run_captured(command, kProbeTimeout);
  const Json found =
      Json::parse(child.text.substr(std::min(child.text.find('{'), child.text.size())), nullptr,
                  /*allow_exceptions=*/false);
  if (!child.ok() || !found.is_object() || !found.contains(backend))
    return {{Health::kMissing, backend,
             child.timed_out ? fmt::format("the self-test did not end within {} s", kProbeTimeout)
                             : "the self-test failed: " + last_line(child.text),
             "run `" + executable + " --self-test " + backend + "` to see all it says"},
            ""};
  return {{Health::kFine, backend, "torch " + found.value("torch", "") + "'s; self-test below", ""},
          self_test_table(found[backend])};
}

// --- GPUs ---

// A missing GPU is no fault of the machine's: only cases that ask for one are skipped.
Line gpu_line(const Probe& probe) {
  if (!probe.cuda_unavailable.empty()) return {Health::kNote, "gpu", probe.cuda_unavailable, ""};
  return {Health::kFine, "gpu",
          fmt::format("{} (driver for CUDA {}, torch's CUDA {})", fmt::join(probe.devices, ", "),
                      probe.driver, probe.runtime),
          ""};
}

Line nccl_line(const Probe& probe) {
  const std::string version = probe.nccl_version.empty() ? "" : probe.nccl_version + "; ";
  if (!probe.nccl_unavailable.empty())
    return {Health::kNote, "nccl", version + "cases are skipped: " + probe.nccl_unavailable, ""};
  const bool tested = probe.nccl_traits == "self-test";
  return {Health::kFine, "nccl",
          version + (tested ? "what it does right was found by a self-test"
                            : "what it does right is taken from its sources"),
          tested ? ""
                 : fmt::format("tools/gpu_check, or distgrad-rank --self-test nccl > {}",
                               std::filesystem::path(probe.nccl_library)
                                   .replace_filename("nccl-traits.json")
                                   .string())};
}

// --- Output ---

void print(const Line& line) {
  constexpr std::string_view kWords[] = {"ok  ", "note", "MISS"};
  say("{}  {:10}{}\n", kWords[static_cast<std::size_t>(line.health)], line.what,
      for_terminal(line.text));
  if (!line.remedy.empty()) say("      {:10}-> {}\n", "", line.remedy);
}

Line rank_line(const std::string& executable) {
  if (::access(executable.c_str(), X_OK) == 0) return {Health::kFine, "ranks", executable, ""};
  return {Health::kMissing, "ranks", "there is no " + executable + ", which runs the ranks",
          "build distgrad with torch (DISTGRAD_TORCH=ON), and keep both executables in one folder"};
}

std::string own_executable() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).string();
}

}  // namespace

ExitCode doctor_command(const Arguments& arguments) {
  CLI::App app("Look at this machine and test the backends' collectives.", "distgrad doctor");
  describe(app,
           "Exit code 3: something that runs need is missing.\n"
           "Example: distgrad doctor\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  bool missing = false;
  const auto show = [&](const Line& line) {
    missing = missing || line.health == Health::kMissing;
    print(line);
    std::fflush(stdout);
  };
  show({Health::kFine, "distgrad", fmt::format("{}, {}", kVersion, own_executable()), ""});
  const std::string executable = rank_executable();
  const Line ranks = rank_line(executable);
  show(ranks);
  if (ranks.health == Health::kFine) show(torch_line(executable));
  show(python_line());
  show(loopback_line());
  show(descriptors_line());
  show(shared_memory_line());
  show(processors_line());
  if (ranks.health != Health::kFine) return ExitCode::kBroken;
  const Probe probe = probe_accelerators(executable, true);
  show(gpu_line(probe));
  show(nccl_line(probe));
  std::string tables;
  for (const std::string backend : {"gloo", "nccl"}) {
    if (backend == "nccl" && !probe.nccl_unavailable.empty()) continue;
    const SelfTest test = self_test(executable, backend);
    show(test.line);
    if (!test.table.empty())
      tables += fmt::format("\nThe collectives of {}:\n{}", backend, test.table);
  }
  say("{}", tables);
  return missing ? ExitCode::kBroken : ExitCode::kAsExpected;
}

}  // namespace distgrad
