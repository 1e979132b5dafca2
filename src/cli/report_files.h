// Writes the reports that commands make beside their output: an option and a file for each format.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "report/report_format.h"

namespace distgrad {

struct ReportFile {
  const ReportFormat* format = nullptr;
  std::string path;  // or "-"
};

class ReportOptions {
 public:
  // Adds the options of all formats to `app`, except `without`: "--json" if the command has a JSON
  // of its own.
  explicit ReportOptions(CLI::App& app, std::string_view without = "");
  ReportOptions(const ReportOptions&) = delete;

  // Must be called after the options are read. Throws UserError, which names `command`, if two
  // reports go to one file.
  std::vector<ReportFile> files(const std::string& command) const;

 private:
  std::vector<const ReportFormat*> formats_;
  std::vector<std::string> paths_;  // by format
};

// Returns true if a report goes to standard output, which then holds nothing else.
bool prints_report(const std::vector<ReportFile>&);

// Returns true if a format draws the traces of values, which cost simulations.
bool wants_traces(const std::vector<ReportFile>&);

// Fills in this machine's name and the folder that CI's pages show paths against.
FormatContext format_context(const TextOptions&);

// Does the same for a command that runs all cases or none; `command` repeats it.
FormatContext format_context(const std::string& command);

// Returns "distgrad run 'my scenarios'", quoted for a shell.
std::string command_text(std::string_view command, const Arguments&);

// Writes every file that can be written, and prints annotations on GitHub. Complains and returns
// false if a file cannot be written.
bool write_reports(const std::vector<ReportFile>&, const Report&, const FormatContext&);

}  // namespace distgrad
