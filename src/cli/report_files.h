// The reports that commands write beside what they print: an option and a file for each format.
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
  // Adds the options of all formats to `app`, but for `without`: "--json" where the command has a
  // JSON of its own.
  explicit ReportOptions(CLI::App& app, std::string_view without = "");
  ReportOptions(const ReportOptions&) = delete;

  // Once they are read. Throws UserError, naming `command`, where two reports are to have one file.
  std::vector<ReportFile> files(const std::string& command) const;

 private:
  std::vector<const ReportFormat*> formats_;
  std::vector<std::string> paths_;  // by format
};

// Whether a report has standard output, which then holds nothing else.
bool prints_report(const std::vector<ReportFile>&);

// Whether a format draws the traces of values, which cost simulations.
bool wants_traces(const std::vector<ReportFile>&);

// With this machine's name and the folder that CI's pages show paths against.
FormatContext format_context(const TextOptions&);

// The same of a command that runs all cases or none of them: `command` is what does it again.
FormatContext format_context(const std::string& command);

// "distgrad run 'my scenarios'": as a shell would take it again.
std::string command_text(std::string_view command, const Arguments&);

// Writes every file that can be written, and on GitHub prints annotations too. False, and
// complaints, where a file cannot be.
bool write_reports(const std::vector<ReportFile>&, const Report&, const FormatContext&);

}  // namespace distgrad
