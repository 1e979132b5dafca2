// Lists the subcommands, each in a file of its own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/exit_code.h"

namespace distgrad {

// Holds what follows the subcommand's name on the command line.
using Arguments = std::vector<std::string>;

// Each reads its arguments with parse_arguments(), first and once (describe_command() relies on
// it), prints to standard output and throws UserError or SystemError.
ExitCode run_command(const Arguments&);
ExitCode explain_command(const Arguments&);
ExitCode audit_command(const Arguments&);
ExitCode fuzz_command(const Arguments&);
ExitCode compare_command(const Arguments&);
ExitCode golden_command(const Arguments&);
ExitCode gradcheck_command(const Arguments&);
ExitCode step_command(const Arguments&);
ExitCode init_command(const Arguments&);
ExitCode repro_command(const Arguments&);
ExitCode list_command(const Arguments&);
ExitCode schema_command(const Arguments&);
ExitCode doctor_command(const Arguments&);
ExitCode completion_command(const Arguments&);
ExitCode version_command(const Arguments&);
ExitCode help_command(const Arguments&);

struct Command {
  std::string_view name;
  std::string_view description;
  ExitCode (*function)(const Arguments&);
};

std::span<const Command> commands();

// Runs the subcommand that the first argument names. Reports errors on standard error and returns
// the exit code.
int run_main(const Arguments&);

}  // namespace distgrad
