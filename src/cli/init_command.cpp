// distgrad init [PLACE]
#include <fmt/format.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/say.h"
#include "report/words.h"
#include "scenario/schema.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchemaName = "distgrad.schema.json";

// JSON has no comments; a scenario has a note.
constexpr std::string_view kFirstScenario = R"({
  "$schema": "distgrad.schema.json",
  "note": "A first scenario. Every rank runs `steps` in order on its own copy of `inputs`, then calls backward on its own `loss`; expressions are Python, over `rank`, `world_size`, the inputs and the steps before. `objective` says which scalar the ranks optimise together: here the sum of all ranks' losses. `truth` is derived by hand, by rank: y = 2 * 1 + 3 * 1 = 5, two losses y * y, so d/dx_r = 2 * 2y * (r + 2). `subjects` are the implementations of the collectives to try, and what is expected of each; the plain in-place all_reduce passes gradients on unchanged, which is known, and so it is as expected.",
  "world_size": 2,
  "inputs": { "x": 1.0 },
  "steps": [
    { "scaled": "(rank + 2) * x" },
    { "y": { "all_reduce": "scaled", "op": "sum" } }
  ],
  "loss": "y * y",
  "objective": "sum",
  "truth": { "x": [40.0, 60.0] },
  "subjects": {
    "reference": "match",
    "torch_nn": "match",
    "in_place": { "verdict": "mismatch", "finding": "identity-backward" }
  }
}
)";

// Returns where the scenario is written: PLACE itself if it ends in .json, else first.json in that
// folder.
fs::path scenario_at(const std::string& place) {
  const fs::path path(place);
  return path.extension() == ".json" ? path : path / "first.json";
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error)
    throw UserError(
        fmt::format("init: cannot make the folder {}: {}", folder.string(), error.message()));
}

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::symlink_status(file, ignored).type() != fs::file_type::not_found;
}

void say_what_next(const std::string& file) {
  say("\n"
      "Next:\n"
      "  distgrad run {0}             # three implementations, as the file expects\n"
      "  distgrad run {0} --verbose   # with every gradient under every objective\n"
      "  distgrad explain {1}\n"
      "  distgrad list subjects       # what else can be tried\n"
      "distgrad audit SUBJECT tries an implementation of your own without a scenario.\n",
      as_typed(file), as_typed(file + ":subject=in_place"));
}

}  // namespace

ExitCode init_command(const Arguments& arguments) {
  CLI::App app("Write a first scenario, and the JSON Schema that lets an editor check it.",
               "distgrad init");
  std::string place = "scenarios";
  app.add_option("PLACE", place, "a folder, or a .json file in it (default scenarios)");
  describe(app,
           "What is there already stays as it is.\n"
           "Example: distgrad init tests/gradients\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  const fs::path file = scenario_at(place);
  const fs::path schema = file.parent_path() / kSchemaName;
  if (file.filename() == kSchemaName)
    throw UserError(fmt::format("init: {} is the schema's name; name another file", kSchemaName));
  if (is_there(file))
    throw UserError(
        fmt::format("init: {} is there already; name another file, or run it: distgrad run {}",
                    file.string(), as_typed(file.string())));
  make_folder(file.parent_path());
  write_file_atomically(file.string(), kFirstScenario);
  say("wrote {}\n", for_terminal(file.string()));
  if (!is_there(schema)) {
    write_file_atomically(schema.string(), scenario_schema());
    say("wrote {}, with which an editor completes and checks keys\n",
        for_terminal(schema.string()));
  }
  say_what_next(file.string());
  return ExitCode::kAsExpected;
}

}  // namespace distgrad
