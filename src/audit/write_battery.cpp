// Writes the audit's battery as scenario files, a folder for each collective and op: what tools/rows_table.py holds a rule
// set and the library that it stands for against each other on.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "audit/battery.h"
#include "base/atomic_file.h"
#include "model/collective_kind.h"
#include "scenario/scenario_text.h"

namespace distgrad {
namespace {

void write_battery(const std::filesystem::path& folder, CollectiveKind kind, ReduceOp op) {
  std::string name{traits(kind).name};
  if (traits(kind).takes_op) name += "_" + std::string(name_of(op));
  std::filesystem::create_directories(folder / name);
  for (const Trial& trial : battery(kind, op))
    write_file_atomically((folder / name / (trial.name + ".json")).string(),
                          scenario_text(nlohmann::ordered_json::parse(trial.scenario)));
}

}  // namespace
}  // namespace distgrad

int main(int count, char** arguments) try {
  using namespace distgrad;
  if (count != 2) {
    fmt::print(stderr, "usage: audit_battery FOLDER\n");
    return 2;
  }
  for (const CollectiveTraits& kind : kCollectives) {
    const std::size_t ops = kind.takes_op ? kReduceOpNames.size() : 1;
    for (std::size_t op = 0; op < ops; ++op) write_battery(arguments[1], kind.kind, static_cast<ReduceOp>(op));
  }
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "audit_battery: {}\n", e.what());
  return 1;
}
