#include <fmt/format.h>

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>

#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/machine_needs.h"
#include "base/output.h"
#include "base/version.h"
#include "base/visible_text.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/say.h"
#include "launched/addresses.h"
#include "launched/agent.h"
#include "launched/hub.h"
#include "launched/leader.h"
#include "launched/place.h"
#include "launched/world.h"
#include "pool/reported_calls.h"

namespace distgrad {
namespace {

// The order is that of `distgrad help`.
constexpr Command kCommands[] = {
    {"run", "run scenario files, folders or single cases, and report", run_command},
    {"explain", "show one case in full: values, cotangents, and where they part", explain_command},
    {"audit", "run one implementation through a battery for every collective", audit_command},
    {"fuzz", "run random programs and shrink what fails", fuzz_command},
    {"compare", "compare saved gradients with those of a reference", compare_command},
    {"gradcheck", "measure a function's backward on several ranks, element by element",
     gradcheck_command},
    {"step", "measure whether a training step's gradients are its loss's derivative", step_command},
    {"golden", "write, check or show changes of files that hold the true gradients",
     golden_command},
    {"init", "write a first scenario, and the schema for editors", init_command},
    {"repro", "write a case as a Python script that needs torch alone, or reduced", repro_command},
    {"list", "what there is: scenarios, cases, collectives, subjects, ...", list_command},
    {"schema", "print the JSON Schema of scenarios, reports or golden files", schema_command},
    {"doctor", "what was found, what is missing, and a self-test of the backend", doctor_command},
    {"completion", "print the completion of a shell", completion_command},
    {"version", "print the version", version_command},
    {"help", "print this, or the help of a command", help_command},
};

const Command* command_named(std::string_view name) {
  const auto found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                  [&](const Command& c) { return c.name == name; });
  return found == std::end(kCommands) ? nullptr : found;
}

const Command& known_command(std::string_view name) {
  if (name == "-h" || name == "--help") name = "help";
  if (name == "--version") name = "version";
  if (const Command* command = command_named(name)) return *command;
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = "; `distgrad help` lists all";
  const std::string_view what = name.starts_with("-") ? "option" : "command";
  throw UserError(fmt::format("unknown {} \"{}\"{}", what, name, hint));
}

void print_overview() {
  std::string text =
      "distgrad checks gradients through distributed collectives against a simulation\n"
      "of all ranks.\n"
      "\n"
      "Usage: distgrad COMMAND [OPTION...]\n"
      "\n";
  for (const Command& command : kCommands)
    text += fmt::format("  {:12}{}\n", command.name, command.description);
  text +=
      "\n"
      "distgrad COMMAND --help lists the options. Examples:\n"
      "  distgrad audit all_gather=python:losses.py:GatherLayer.apply\n"
      "  distgrad compare reference/ grads/\n"
      "  distgrad init && distgrad run\n";
  put(text);
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

ExitCode help_command(const Arguments& arguments) {
  CLI::App app("Print what there is, or the help of a command.", "distgrad help");
  std::string command;
  app.add_option("COMMAND", command, "as `distgrad COMMAND --help`");
  describe(app, "Example: distgrad help run\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  if (!command.empty()) return known_command(command).function({"--help"});
  print_overview();
  return ExitCode::kAsExpected;
}

ExitCode version_command(const Arguments& arguments) {
  CLI::App app("Print the version, and that of the torch it was built with.", "distgrad version");
  describe(app, "Example: distgrad version\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  say("distgrad {}{}{}\n", kVersion, kTorchVersion.empty() ? "" : ", built with torch ",
      kTorchVersion);
  return ExitCode::kAsExpected;
}

namespace {

// Returns `work`'s exit code. Exceptions are reported here and nowhere else.
template <class Work>
int with_errors_reported(const Work& work) {
  try {
    return work();
  } catch (const UserError& e) {
    complain("distgrad: {}\n", visible_text(e.what(), Lines::kKept));
    return static_cast<int>(ExitCode::kUserError);
  } catch (const std::exception& e) {
    complain("distgrad: {}\n", visible_text(e.what(), Lines::kKept));
    return static_cast<int>(ExitCode::kBroken);
  }
}

int run_here(const Arguments& arguments) {
  return with_errors_reported([&] {
    if (arguments.empty()) {
      print_overview();
      return static_cast<int>(ExitCode::kUserError);
    }
    const Command& command = known_command(arguments[0]);
    require_working_folder();
    const ExitCode code = command.function({arguments.begin() + 1, arguments.end()});
    if (output_problem().empty()) return static_cast<int>(code);
    complain("distgrad: cannot write standard output: {}\n", output_problem());
    return std::max(static_cast<int>(code), static_cast<int>(ExitCode::kUserError));
  });
}

// Sets torchrun's variables, by which `gradcheck` joins the launcher's ranks itself, each of them,
// as torch does.
void set_torchs_variables(const LaunchedWorld& world) {
  if (std::getenv("RANK")) return;
  std::string error;
  const std::vector<Address> addresses = addresses_of(world.meeting_host, &error);
  if (addresses.empty())
    throw UserError(
        fmt::format("the host of rank 0, {}, is not known: {}", world.meeting_host, error));
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 0);
  };
  set("RANK", std::to_string(world.rank));
  set("WORLD_SIZE", std::to_string(world.size));
  set("LOCAL_RANK", std::to_string(std::max(0, world.local_rank)));
  set("MASTER_ADDR", addresses[0].host());
  set("MASTER_PORT", std::to_string(world.first_port));
}

// Runs among several of these processes that a launcher started: rank 0's does what is asked, the
// others serve it.
int run_among_ranks(const Arguments& arguments, const LaunchedWorld& world) {
  if (world.rank != 0) return follow(world);
  Leader leader(world);
  const int code = run_here(arguments);
  ::fflush(stdout);
  // The others may have ended with the same code before this process; launchers then end those
  // left.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  leader.finish(code);
  return code;
}

}  // namespace

int run_main(const Arguments& arguments) {
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the call that writes it
  if (arguments == Arguments{kHubWord}) return be_hub();
  if (arguments == Arguments{kAgentWord}) return be_agent();
  if (!arguments.empty() && arguments[0] == kPlaceWord)
    return with_errors_reported([&] {
      return print_place({arguments.begin() + 1, arguments.end()});
    });
  if (arguments == Arguments{kUnmetCallsWord})
    return with_errors_reported([] {
      const std::string notes{std::istreambuf_iterator<char>(std::cin), {}};
      put(unmet_calls(notes));
      return 0;
    });
  return with_errors_reported([&] {
    const auto world = launched_world([](const char* name) { return std::getenv(name); });
    const std::string command = arguments.empty() ? "" : arguments[0];
    if (world && command == "gradcheck") set_torchs_variables(*world);
    // `step` meets the other ranks by itself, too: from Python, as check_step does.
    if (command == "gradcheck" || command == "step") return run_here(arguments);
    return world ? run_among_ranks(arguments, *world) : run_here(arguments);
  });
}

}  // namespace distgrad
