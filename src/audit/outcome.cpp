#include "audit/outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/lines.h"

namespace distgrad {
namespace {

template <std::size_t N>
bool has_one_of(const std::string& text, const std::string_view (&words)[N]) {
  return std::any_of(std::begin(words), std::end(words),
                     [&](std::string_view w) { return text.find(w) != text.npos; });
}

// Recognises "model parallel group is not initialized": the code keeps its own groups, which nobody
// made.
bool lacks_its_groups(const std::string& message) {
  constexpr std::string_view kWords[] = {"not initialized", "not been initialized"};
  return has_one_of(message, kWords);
}

// Returns true if the error's words are a refusal.
bool says_that_it_refuses(const TrialResult& t) {
  constexpr std::string_view kRefusals[] = {"NotImplemented", "not implemented", "not supported",
                                            "unsupported",    "Unsupported",     "not support ",
                                            "only support",   "only implemented"};
  // Functions that join or cut tensors do not treat those without a dimension, and torch says so
  // for them.
  constexpr std::string_view kNoDimension[] = {"0-dim tensor", "zero-dimensional",
                                               "tensor has no dimensions"};
  constexpr std::string_view kDevices[] = {".is_cuda", ".is_cpu", "device.type"};
  const std::string& message = t.result.error->message;
  const std::string first = first_line(message);
  // In forward its message is reported unchanged.
  const bool lacks_surroundings =
      t.result.error->in_backward &&
      (lacks_its_groups(message) ||
       (first.starts_with("AssertionError: assert ") && has_one_of(first, kDevices)));
  return lacks_surroundings || has_one_of(message, kRefusals) ||
         (t.trial.program == "scalar" && has_one_of(message, kNoDimension));
}

// Gloo ends the process if ranks send each other more than expected. If the call cannot give the
// sizes, that is its way to accept one size only.
bool is_refused_by_gloo(const TrialResult& t) {
  constexpr std::string_view kWords[] = {"op.preamble.length <= op.nbytes",
                                         "Received data size doesn't match"};
  return t.trial.is_uneven && !t.trial.has_splits && has_one_of(t.result.error->message, kWords);
}

Outcome outcome_of_error(const TrialResult& t) {
  const RankError& error = *t.result.error;
  const bool raised = error.kind == ErrorKind::kException;
  if (raised && says_that_it_refuses(t))
    return error.in_backward ? Outcome::kRefusedInBackward : Outcome::kRefused;
  // The simulation raised, so there was nothing to compare with.
  if (error.rank < 0) return Outcome::kRefused;
  if (error.in_backward) return Outcome::kFailsInBackward;
  if (is_refused_by_gloo(t) || t.trial.may_raise) return Outcome::kRefused;
  return raised ? Outcome::kRaises : Outcome::kBreaks;
}

bool counts_the_norm_once(const TrialResult& t) {
  return t.trial.may_count_once && !t.result.findings.empty() &&
         t.result.findings[0].rule == "objective";
}

}  // namespace

Outcome outcome_of(const TrialResult& t) {
  switch (t.result.verdict) {
    case Verdict::kMatch:
      return Outcome::kRight;
    case Verdict::kMismatch:
      return counts_the_norm_once(t) ? Outcome::kRight : Outcome::kWrong;
    case Verdict::kDisputed:
      return Outcome::kDisputed;
    case Verdict::kSkipped:
      return Outcome::kRefused;
    case Verdict::kError:
      break;
  }
  return t.result.error ? outcome_of_error(t) : Outcome::kBreaks;
}

std::string reason_of(const TrialResult& t) {
  if (!t.result.error) return first_line(t.result.why);
  if (is_refused_by_gloo(t))
    return "takes operands of one size only (Gloo: received data size doesn't match expected size)";
  const std::string& message = t.result.error->message;
  return first_line(message) +
         (lacks_its_groups(message)
              ? " (a function setup(groups) in the file can give it its groups: docs/your-code.md)"
              : "");
}

std::string error_text(const TrialResult& t) {
  const RankError& e = *t.result.error;
  return fmt::format(
      "{}{}{} ({}): {}", name_of(e.kind),
      e.rank >= 0 && e.kind == ErrorKind::kException ? fmt::format(" on rank {}", e.rank) : "",
      e.in_backward ? " in backward" : "", t.trial.name, first_line(e.message));
}

}  // namespace distgrad
