#include "launched/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/sha256.h"
#include "base/whole_number.h"

namespace distgrad {
namespace {

// These ports lie below those that the kernel gives to outgoing connections (32768 on).
constexpr int kLowestPort = 20000, kPorts = 12000;
constexpr int kLastPort = 65535 - 64;

// Reads values of the environment.
class Variables {
 public:
  explicit Variables(const Variable& variable) : variable_(variable) {}

  std::string text(const char* name) const {
    const char* value = variable_(name);
    return value ? value : "";
  }
  bool has(const char* name) const { return !text(name).empty(); }

  int number(const char* name, int low, int high) const {
    const std::string value = text(name);
    const auto number = whole_number<int>(value);
    if (!number || *number < low || *number > high)
      throw UserError(fmt::format(
          "{}={} is no number from {} to {}; DISTGRAD_LAUNCHER=none runs without the launcher",
          name, value, low, high));
    return *number;
  }
  int number_or(const char* name, int otherwise) const {
    return has(name) ? number(name, 0, 1 << 20) : otherwise;
  }

 private:
  const Variable& variable_;
};

constexpr int kMostRanks = 1 << 20;

// Takes rank and size from these variables; returns whether both are there.
bool take_place(const Variables& env, const char* rank, const char* size, LaunchedWorld& world) {
  if (!env.has(rank) || !env.has(size)) return false;
  world.size = env.number(size, 1, kMostRanks);
  world.rank = env.number(rank, 0, world.size - 1);
  return true;
}

std::string first_of(const Variables& env, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (env.has(name)) return env.text(name);
  return "";
}

bool by_torchrun(const Variables& env, LaunchedWorld& world) {
  if (!env.has("MASTER_ADDR") || !take_place(env, "RANK", "WORLD_SIZE", world)) return false;
  world.launcher = env.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "the launcher";
  world.local_rank = env.number_or("LOCAL_RANK", -1);
  world.local_size = env.number_or("LOCAL_WORLD_SIZE", 0);
  world.job = fmt::format("torchrun {} {} {} {}", env.text("TORCHELASTIC_RUN_ID"),
                          env.text("TORCHELASTIC_RESTART_COUNT"), env.text("MASTER_ADDR"),
                          env.text("MASTER_PORT"));
  return true;
}

bool by_open_mpi(const Variables& env, LaunchedWorld& world) {
  if (!take_place(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", world)) return false;
  world.launcher = "Open MPI";
  world.local_rank = env.number_or("OMPI_COMM_WORLD_LOCAL_RANK", -1);
  world.local_size = env.number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
  world.job = "mpi " + first_of(env, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"});
  return true;
}

// Looks only at a step's variables: a batch script has SLURM_PROCID, too, yet is alone.
bool by_slurm(const Variables& env, LaunchedWorld& world) {
  if (!env.has("SLURM_STEP_ID") || !take_place(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", world))
    return false;
  world.launcher = "Slurm";
  world.local_rank = env.number_or("SLURM_LOCALID", -1);
  const bool one_node = env.text("SLURM_STEP_NUM_NODES") == "1";
  world.local_size = one_node ? world.size
                              : tasks_on_node(env.text("SLURM_STEP_TASKS_PER_NODE"),
                                              env.number_or("SLURM_NODEID", 0));
  world.job = fmt::format("slurm {}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"));
  return true;
}

bool by_pmi(const Variables& env, LaunchedWorld& world) {
  if (!take_place(env, "PMI_RANK", "PMI_SIZE", world)) return false;
  world.launcher = "MPI";
  const std::string rank = first_of(env, {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"});
  const std::string size = first_of(env, {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"});
  std::from_chars(rank.data(), rank.data() + rank.size(), world.local_rank);
  std::from_chars(size.data(), size.data() + size.size(), world.local_size);
  world.job = "mpi " + first_of(env, {"PMI_JOBID", "PBS_JOBID", "LSB_JOBID"});
  return true;
}

void find_meeting_place(const Variables& env, LaunchedWorld& world) {
  if (world.is_on_one_host())
    world.meeting_host = "127.0.0.1";
  else if (env.has("MASTER_ADDR"))
    world.meeting_host = env.text("MASTER_ADDR");
  else if (env.has("SLURM_STEP_NODELIST"))
    world.meeting_host = first_host(env.text("SLURM_STEP_NODELIST"));
  else
    throw UserError(fmt::format(
        "rank {} of {} does not know where rank 0 is: set MASTER_ADDR to its host, for all ranks "
        "(mpirun -x MASTER_ADDR=HOST)",
        world.rank, world.size));
}

}  // namespace

std::string first_host(const std::string& list) {
  const std::size_t end = list.find_first_of(",[");
  if (end == list.npos || list[end] == ',') return list.substr(0, end);
  const std::size_t close = list.find(']', end);
  const std::size_t number_end = list.find_first_of(",-]", end);
  if (close == list.npos || number_end == list.npos) return list.substr(0, end);
  return first_host(list.substr(0, end) + list.substr(end + 1, number_end - end - 1) +
                    list.substr(close + 1));
}

int tasks_on_node(const std::string& list, int node) {
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    int tasks = 0, times = 1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), tasks);
    if (error != std::errc()) return 0;
    if (const std::size_t at = part.find("(x"); at != part.npos)
      std::from_chars(part.data() + at + 2, part.data() + part.size(), times);
    if (node < times) return tasks;
    node -= times;
  }
  return 0;
}

std::optional<LaunchedWorld> launched_world(const Variable& variable) {
  const Variables env(variable);
  if (env.text("DISTGRAD_LAUNCHER") == "none") return std::nullopt;
  if (env.has("DISTGRAD_LAUNCHER"))
    throw UserError(
        fmt::format("DISTGRAD_LAUNCHER={}: it can only be none, which ignores the launcher; else "
                    "leave it unset",
                    env.text("DISTGRAD_LAUNCHER")));
  LaunchedWorld world;
  if (!by_torchrun(env, world) && !by_open_mpi(env, world) && !by_slurm(env, world) &&
      !by_pmi(env, world))
    return std::nullopt;
  if (world.size == 1) return std::nullopt;
  find_meeting_place(env, world);
  world.job += fmt::format(" {} {}", world.size, getuid());
  if (env.has("DISTGRAD_LAUNCH_TIMEOUT"))
    world.wait_s = std::min(world.wait_s, env.number("DISTGRAD_LAUNCH_TIMEOUT", 1, 1 << 20));
  if (env.has("DISTGRAD_PORT"))
    world.first_port = env.number("DISTGRAD_PORT", 1, kLastPort);
  else if (env.has("MASTER_PORT"))
    world.first_port = std::min(env.number("MASTER_PORT", 0, 65535) + 1, kLastPort);
  else
    world.first_port =
        kLowestPort + std::stoi(sha256(world.job).substr(0, 6), nullptr, 16) % kPorts;
  return world;
}

}  // namespace distgrad
