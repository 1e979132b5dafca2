#include "cli/report_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/visible_text.h"
#include "cli/say.h"
#include "launched/leader.h"
#include "report/github.h"
#include "report/words.h"

namespace distgrad {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string source_root() {
  for (const char* name : {"GITHUB_WORKSPACE", "CI_PROJECT_DIR"})
    if (const char* root = std::getenv(name); root != nullptr && *root != '\0') return root;
  std::error_code ignored;
  return std::filesystem::current_path(ignored).string();
}

// GitHub reads commands from both streams.
void annotate(const std::vector<ReportFile>& files, const Report& report,
              const FormatContext& context) {
  const char* on_github = std::getenv("GITHUB_ACTIONS");
  if (on_github == nullptr || *on_github == '\0') return;
  const std::string commands = github_annotations(report, context);
  if (!prints_report(files)) return put_raw(commands);
  std::fputs(commands.c_str(), stderr);
}

}  // namespace

ReportOptions::ReportOptions(CLI::App& app, std::string_view without) {
  for (const ReportFormat* format : report_formats())
    if (format->option != without) formats_.push_back(format);
  paths_.resize(formats_.size());
  for (std::size_t i = 0; i < formats_.size(); ++i)
    app.add_option(std::string(formats_[i]->option), paths_[i], std::string(formats_[i]->help))
        ->type_name("FILE");
}

std::vector<ReportFile> ReportOptions::files(const std::string& command) const {
  std::vector<ReportFile> files;
  std::set<std::string> taken;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i].empty()) continue;
    if (!taken.insert(paths_[i]).second)
      throw UserError(fmt::format("{}: {}: {} holds another report already", command,
                                  formats_[i]->option,
                                  paths_[i] == "-" ? "standard output" : paths_[i]));
    files.push_back({formats_[i], paths_[i]});
  }
  return files;
}

bool prints_report(const std::vector<ReportFile>& files) {
  return std::any_of(files.begin(), files.end(), [](const ReportFile& f) { return f.path == "-"; });
}

bool wants_traces(const std::vector<ReportFile>& files) {
  return std::any_of(files.begin(), files.end(),
                     [](const ReportFile& f) { return f.format->wants_traces; });
}

FormatContext format_context(const TextOptions& text) {
  FormatContext context{.text = text, .host = host_name(), .root = source_root()};
  if (leader()) context.hosts = leader()->host_names();
  return context;
}

FormatContext format_context(const std::string& command) {
  TextOptions text;
  text.again = command;
  text.again_names_case = false;
  return format_context(text);
}

std::string command_text(std::string_view command, const Arguments& arguments) {
  std::string text = fmt::format("distgrad {}", command);
  for (const std::string& word : arguments) text += " " + as_typed(word);
  return text;
}

bool write_reports(const std::vector<ReportFile>& files, const Report& report,
                   const FormatContext& context) {
  bool all_written = true;
  for (const ReportFile& file : files) {
    try {
      write_file_atomically(file.path, file.format->text(report, context));
    } catch (const UserError& e) {
      complain("distgrad: {}\n", visible_text(e.what(), Lines::kKept));
      all_written = false;
    }
  }
  annotate(files, report, context);
  return all_written;
}

}  // namespace distgrad
