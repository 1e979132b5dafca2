// Reads a subcommand's arguments with CLI11, and words errors itself.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "cli/command.h"

namespace distgrad {

// Sets up an app for `distgrad NAME`, whose help has one line an option and ends with the examples.
void describe(CLI::App& app, const std::string& examples);

// Reads the arguments. Returns an exit code if the help was asked for and printed. Throws
// UserError, with "did you mean" for an unknown option.
std::optional<ExitCode> parse_arguments(CLI::App& app, const Arguments& arguments);

// Describes what a command takes, for the completion of shells.
struct OptionDescription {
  std::string name;      // "--json", or a positional's: "PATH"
  std::string argument;  // "FILE"; empty for a flag. A positional may have choices:
                         // "|update|check|diff"
  bool repeats = false;
};
struct CommandDescription {
  std::vector<OptionDescription> options;
  std::vector<OptionDescription> positionals;
};

// Calls the command without arguments, and gets what it would have parse_arguments() read.
// Single-threaded.
CommandDescription describe_command(const Command& command);

// Returns the type_name of a positional that is one of these words.
std::string choices_text(const std::vector<std::string>& words);

}  // namespace distgrad
