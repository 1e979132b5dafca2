// Ends a command that a signal has interrupted.
#pragma once

#include <csignal>
#include <string>

#include "base/exit_code.h"
#include "base/visible_text.h"
#include "cli/say.h"
#include "launched/leader.h"

namespace distgrad {

// Says why a command ended that this signal interrupted.
inline std::string interruption_text(int signal) {
  if (signal == SIGALRM) return "the time of --total-timeout is over";
  // A launcher that has lost a rank interrupts the others; then the lost rank is what matters.
  const std::string loss = leader() ? leader()->loss() : "";
  return loss.empty() ? "interrupted" : "interrupted; " + visible_text(loss, Lines::kKept);
}

// Returns the code that shells use.
inline ExitCode exit_code_of_signal(int signal) { return static_cast<ExitCode>(128 + signal); }

// Reports it, and returns the exit code.
inline ExitCode interrupted(int signal) {
  complain("distgrad: {}\n", interruption_text(signal));
  return exit_code_of_signal(signal);
}

}  // namespace distgrad
