// Reads a subcommand's arguments with CLI11, and tells what is wrong with them in our words.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "base/exit_code.h"
#include "cli/command.h"

namespace distgrad {

// An app for `distgrad NAME`, whose help has one line an option and ends with the examples.
void describe(CLI::App& app, const std::string& examples);

// Nothing: the arguments are read. An exit code: the help was asked for and printed. Throws
// UserError, with "did you mean" for an unknown option.
std::optional<ExitCode> parse_arguments(CLI::App& app, const Arguments& arguments);

}  // namespace distgrad
