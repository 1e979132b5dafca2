// Adds the options of every command that runs something: what it may use at most, and whether it
// runs apart from the rest of the machine.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace distgrad {

class GuardOptions {
 public:
  explicit GuardOptions(CLI::App& app);
  GuardOptions(const GuardOptions&) = delete;

  // Must be called after the options are read. With --sandbox this returns in another process.
  // Throws UserError, which names `command`.
  void apply(const std::string& command) const;

 private:
  double max_timeout_ = 0, total_timeout_ = 0;
  std::string max_memory_;
  bool sandbox_ = false;
  bool host_network_ = false;
  CLI::Option *max_timeout_option_, *total_timeout_option_;
};

// Reads "512M", "4G" or "4096" (bytes). Throws UserError.
std::uint64_t bytes_of(const std::string& text);

}  // namespace distgrad
