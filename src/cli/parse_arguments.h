// Reads a subcommand's arguments with CLI11, and tells what is wrong with them in our words.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "cli/command.h"

namespace distgrad {

// An app for `distgrad NAME`, whose help has one line an option and ends with the examples.
void describe(CLI::App& app, const std::string& examples);

// Nothing: the arguments are read. An exit code: the help was asked for and printed. Throws
// UserError, with "did you mean" for an unknown option.
std::optional<ExitCode> parse_arguments(CLI::App& app, const Arguments& arguments);

// What a command takes, as the completion of shells needs it.
struct OptionDescription {
  std::string name;      // "--json", or a positional's: "PATH"
  std::string argument;  // "FILE"; empty for a flag. A positional's choices: "|update|check|diff"
  bool repeats = false;
};
struct CommandDescription {
  std::vector<OptionDescription> options;
  std::vector<OptionDescription> positionals;
};

// Calls the command with no arguments, and gets what it would have parse_arguments() read. One
// thread.
CommandDescription describe_command(const Command& command);

// The type_name of a positional that is one of these words.
std::string choices_text(const std::vector<std::string>& words);

}  // namespace distgrad
