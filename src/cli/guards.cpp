#include "cli/guards.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/interrupts.h"
#include "base/limits.h"
#include "base/sandbox.h"
#include "base/whole_number.h"
#include "launched/leader.h"

namespace distgrad {
namespace {

void check_seconds(const std::string& command, const CLI::Option& option, double seconds) {
  if (option.count() > 0 && !(seconds > 0 && std::isfinite(seconds)))
    throw UserError(
        fmt::format("{}: {} is a number of seconds above 0", command, option.get_name()));
}

}  // namespace

GuardOptions::GuardOptions(CLI::App& app) {
  max_timeout_option_ = app.add_option("--max-timeout", max_timeout_,
                                       "seconds for one case, even if its file allows more")
                            ->type_name("S");
  total_timeout_option_ = app.add_option("--total-timeout", total_timeout_,
                                         "seconds for all; what is finished then is reported")
                              ->type_name("S");
  app.add_option("--max-memory", max_memory_, "for the ranks of a case: 4G; default 9/10 of all")
      ->type_name("SIZE");
  app.add_flag("--sandbox", sandbox_, "strangers' code: no network, files read-only");
  app.add_flag("--host-network", host_network_, "ranks on the machine's network, not their own");
}

void GuardOptions::apply(const std::string& command) const {
  check_seconds(command, *max_timeout_option_, max_timeout_);
  check_seconds(command, *total_timeout_option_, total_timeout_);
  if (sandbox_ && host_network_)
    throw UserError(command + ": --sandbox has no network: not with --host-network");
  Limits limits{max_timeout_, total_timeout_, usual_memory_bytes(), host_network_};
  try {
    if (!max_memory_.empty()) limits.memory_bytes = bytes_of(max_memory_);
    if (sandbox_ && leader())
      throw UserError(
          "--sandbox has a network of its own, in which the launcher's other ranks are not; "
          "DISTGRAD_LAUNCHER=none runs without them");
    if (sandbox_) enter_sandbox();
  } catch (const UserError& e) {
    throw UserError(command + ": " + e.what());
  }
  set_limits(limits);
  ::setenv(kMemoryVariable, std::to_string(limits.memory_bytes).c_str(), 1);
  if (limits.total_s > 0) interrupt_after(limits.total_s);
}

std::uint64_t bytes_of(const std::string& text) {
  constexpr std::string_view kUnits = "KMGT";
  std::string_view digits = text;
  std::uint64_t unit = 1;
  if (!digits.empty())
    if (const std::size_t place = kUnits.find(digits.back()); place != kUnits.npos) {
      unit = std::uint64_t{1} << (10 * (place + 1));
      digits.remove_suffix(1);
    }
  const auto number = whole_number<std::uint64_t>(digits);
  constexpr std::uint64_t kLeast = 64 << 20, kMost = std::uint64_t{1} << 50;
  if (!number || *number > kMost / unit || *number * unit < kLeast)
    throw UserError("--max-memory is a number of bytes from 64M on, as 512M or 4G");
  return *number * unit;
}

}  // namespace distgrad
