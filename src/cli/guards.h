// The options of every command that runs something: what it may take at most, and whether it runs
// apart from the rest of the machine.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace distgrad {

class GuardOptions {
 public:
  explicit GuardOptions(CLI::App& app);
  GuardOptions(const GuardOptions&) = delete;

  // Once they are read. With --sandbox this returns in another process. Throws UserError, `command`
  // being named in it.
  void apply(const std::string& command) const;

 private:
  double max_timeout_ = 0, total_timeout_ = 0;
  std::string max_memory_;
  bool sandbox_ = false;
  bool host_network_ = false;
  CLI::Option *max_timeout_option_, *total_timeout_option_;
};

// "512M", "4G", "4096" (bytes). Throws UserError.
std::uint64_t bytes_of(const std::string& text);

}  // namespace distgrad
