#include "pool/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "model/ranks_text.h"
#include "pool/stalled.h"

namespace distgrad {
namespace {

// Lists how Gloo, NCCL and the kernel say that the other end of a connection is gone.
constexpr std::array<std::string_view, 10> kEchoes = {"onnection closed by peer",
                                                      "onnection reset by peer",
                                                      "onnection was closed",
                                                      "Broken pipe",
                                                      "onnection refused",
                                                      "remote process exited",
                                                      "Socket closed",
                                                      "pair closure",
                                                      "recvValue failed",
                                                      "onnection was likely closed"};

const Step* step_of(const Program& program, const RankPlace& place) {
  const auto index = static_cast<std::size_t>(place.step);
  return place.step >= 0 && index < program.steps.size() ? &program.steps[index] : nullptr;
}

std::string_view direction(Phase phase) {
  return phase == Phase::kBackward ? "backward" : "forward";
}

bool in_collective(const Program& program, const RankPlace& place) {
  if (place.state != RankPlace::State::kRunning) return false;
  const Step* step = step_of(program, place);
  return step && step->collective();
}

std::string doing(const Program& program, const RankPlace& place, bool plural) {
  switch (place.state) {
    case RankPlace::State::kNotBegun:
      return plural ? "have not begun" : "has not begun";
    case RankPlace::State::kFinished:
      return plural ? "have finished" : "has finished";
    case RankPlace::State::kRunning:
      break;
  }
  const bool waits = in_collective(program, place) || place.phase == Phase::kConnect ||
                     place.phase == Phase::kSync;
  const std::string_view verb = waits ? (plural ? "wait" : "waits") : (plural ? "are" : "is");
  const std::string text = fmt::format("{} in {}", verb, place_text(program, place));
  const bool is_odd = !place.seen_at.empty() && !(waits && place.seen_at == "asleep");
  return !is_odd ? text : fmt::format("{} ({})", text, place.seen_at);
}

// Joins the last lines that a dead rank wrote.
std::string last_words(const std::string& output) {
  constexpr std::size_t kLimit = 500;
  // The reason why a Python process died comes before the stack that Python prints or, if it wrote
  // nothing else, at the top of the stack.
  constexpr std::string_view kStack = "Fatal Python error: ";
  const std::size_t stack = output.find(kStack);
  std::string text = output.substr(
      0, stack == 0 ? std::min(output.find("\n\nExtension modules: "), kLimit) : stack);
  text = text.substr(text.size() - std::min(text.size(), kLimit));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int precedence(const RankError& error) {  // the first cause has the lowest
  if (is_echo(error)) return 4;
  if (error.kind == ErrorKind::kException) return 0;
  if (error.kind == ErrorKind::kCrash || error.kind == ErrorKind::kSubject) return 1;
  if (error.kind == ErrorKind::kBackend) return 2;
  return 3;
}

}  // namespace

std::string place_text(const Program& program, const RankPlace& place) {
  if (place.phase == Phase::kConnect) return "connecting to the other ranks";
  if (place.phase == Phase::kLoad) return "the subject's import";
  if (place.phase == Phase::kSync) return "the all-reduce of gradients (sync)";
  if (const Step* step = step_of(program, place)) {
    const CollectiveCall* call = step->collective();
    const std::string kind = call ? fmt::format(" ({})", traits(call->kind).name) : "";
    return fmt::format("step {}{}, {}", step->name, kind, direction(place.phase));
  }
  if (place.step >= static_cast<int>(program.steps.size()) && place.step > 0)
    return fmt::format("the loss, {}", direction(place.phase));
  return "the program's beginning";
}

bool most_still_connect(const Program& program, std::span<const RankPlace> places) {
  std::size_t connecting = 0, before = 0;
  for (const RankPlace& place : places) {
    const bool runs = place.state == RankPlace::State::kRunning;
    if (runs && place.phase == Phase::kConnect)
      ++connecting;
    else if (place.state == RankPlace::State::kNotBegun ||
             (runs && place.step < 0 && place.phase != Phase::kLoad))
      ++before;
    else if (!in_collective(program, place))
      return false;
  }
  return connecting > 0 && 2 * (connecting + before) > places.size();
}

RankError hang_error(const Program& program, std::span<const RankPlace> places, double timeout_s) {
  std::optional<RankError> seen = difference_error(program, places);
  if (!seen) seen = absence_error(program, places);
  if (seen) {
    seen->message = fmt::format("not done after {:g} s: {}", timeout_s, seen->message);
    return *seen;
  }
  struct Together {
    const RankPlace* place;
    std::vector<int> ranks;
  };
  std::vector<Together> groups;                    // ranks of which the same can be said
  std::vector<std::pair<int, Phase>> collectives;  // the different ones that ranks wait in
  const RankPlace* culprit = nullptr;
  for (const RankPlace& place : places) {
    const std::string text = doing(program, place, false);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Together& g) {
      return doing(program, *g.place, false) == text;
    });
    if (same != groups.end())
      same->ranks.push_back(place.rank);
    else
      groups.push_back({&place, {place.rank}});

    if (place.state == RankPlace::State::kFinished) continue;
    const bool waits = in_collective(program, place);
    // A rank that computes, or has not come, is likelier to be the cause than one that waits.
    if (!culprit || (!waits && in_collective(program, *culprit))) culprit = &place;
    // A rank that connects for a step is on its way into either direction of it.
    const auto is_same = [&](const std::pair<int, Phase>& c) {
      return c.first == place.step && (c.second == place.phase || c.second == Phase::kConnect ||
                                       place.phase == Phase::kConnect);
    };
    if (waits && std::none_of(collectives.begin(), collectives.end(), is_same))
      collectives.emplace_back(place.step, place.phase);
  }
  std::vector<std::string> parts;
  for (const auto& [place, ranks] : groups)
    parts.push_back(
        fmt::format("{} {}", ranks_text(ranks), doing(program, *place, ranks.size() > 1)));

  RankError error;
  error.kind = collectives.size() > 1 ? ErrorKind::kDesync : ErrorKind::kHang;
  if (culprit) {
    error.rank = culprit->rank;
    const Step* step =
        culprit->state == RankPlace::State::kRunning ? step_of(program, *culprit) : nullptr;
    if (step) error.step = step->name;
    error.in_backward = step && culprit->phase == Phase::kBackward;
  }
  error.message = fmt::format("not done after {:g} s: {}", timeout_s, fmt::join(parts, "; "));
  return error;
}

RankError crash_error(const Program& program, const RankPlace& place, const std::string& how,
                      const std::string& output) {
  RankError error;
  error.kind = ErrorKind::kCrash;
  error.rank = place.rank;
  std::string where;
  switch (place.state) {
    case RankPlace::State::kNotBegun:
      where = "before it began the case";
      break;
    case RankPlace::State::kFinished:
      where = "after it had computed the case, before it reported the result";
      break;
    case RankPlace::State::kRunning:
      where = "in " + (place.rank < 0 ? "the simulation" : place_text(program, place));
      if (const Step* step = step_of(program, place)) error.step = step->name;
      error.in_backward = !error.step.empty() && place.phase == Phase::kBackward;
      if (place.phase == Phase::kLoad)
        error.kind = ErrorKind::kSubject;  // it cannot be loaded, so no case is to blame
      break;
  }
  error.message = fmt::format("{} {}", how, where);
  if (const std::string words = last_words(output); !words.empty())
    error.message += "; it wrote: " + words;
  return error;
}

bool is_echo(const RankError& error) {
  if (error.kind != ErrorKind::kException && error.kind != ErrorKind::kBackend) return false;
  return std::any_of(kEchoes.begin(), kEchoes.end(), [&](std::string_view echo) {
    return error.message.find(echo) != std::string::npos;
  });
}

const RankError& first_cause(std::span<const RankError> errors) {
  return *std::min_element(
      errors.begin(), errors.end(), [](const RankError& a, const RankError& b) {
        const auto key = [](const RankError& e) {
          return std::pair(precedence(e), e.kind == ErrorKind::kCrash ? 0 : e.rank);
        };
        return key(a) < key(b);
      });
}

bool may_be_inherited(const RankError& error) {
  return error.kind != ErrorKind::kException || is_echo(error);
}

}  // namespace distgrad
