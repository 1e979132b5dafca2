// How a command ends that a signal has interrupted.
#pragma once

#include <csignal>
#include <string>

#include "base/exit_code.h"
#include "base/visible_text.h"
#include "cli/say.h"
#include "launched/leader.h"

namespace distgrad {

// Why a command has ended that was interrupted by this signal.
inline std::string interruption_text(int signal) {
  if (signal == SIGALRM) return "the time of --total-timeout is over";
  // A launcher that has lost a rank interrupts the others: then the rank is what matters.
  const std::string loss = leader() ? leader()->loss() : "";
  return loss.empty() ? "interrupted" : "interrupted; " + visible_text(loss, Lines::kKept);
}

// As shells say it.
inline ExitCode exit_code_of_signal(int signal) { return static_cast<ExitCode>(128 + signal); }

// Says so, and returns the exit code.
inline ExitCode interrupted(int signal) {
  complain("distgrad: {}\n", interruption_text(signal));
  return exit_code_of_signal(signal);
}

}  // namespace distgrad
