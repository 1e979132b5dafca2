#include "pool/stalled.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "model/ranks_text.h"

namespace distgrad {
namespace {

using Places = std::vector<const RankPlace*>;

// Returns true also for a rank that has failed in the call.
bool is_in_call(const RankPlace& place) {
  return place.state != RankPlace::State::kNotBegun && place.call && place.call->waits;
}

std::string name_of(const NotedCall& call) {
  return call.op.empty() ? call.kind : call.kind + " " + call.op;
}

bool is_message(const NotedCall& call) { return call.kind == "send" || call.kind == "recv"; }

// Returns "all_reduce sum of float64 [4]", "broadcast of float32 [2, 3], root 1" or "recv of
// float32 [2], from rank 1".
std::string text_of(const NotedCall& call) {
  std::string text = name_of(call);
  if (!call.dtype.empty())
    text += fmt::format(" of {} [{}]", call.dtype, fmt::join(call.shape, ", "));
  if (call.root < 0) return text;
  const char* which = call.kind == "send" ? "to rank" : call.kind == "recv" ? "from rank" : "root";
  return text + fmt::format(", {} {}", which, call.root);
}

std::string group_text(const NotedCall& call, const Program& program) {
  if (is_message(call) || call.ranks.empty() ||
      static_cast<int>(call.ranks.size()) == program.world_size)
    return "";
  return fmt::format(", in the group of {}", ranks_text(call.ranks));
}

// A step of training has no known program.
bool is_case(const Program& program) { return !program.steps.empty(); }

const char* the_case(const Program& program) { return is_case(program) ? " the case" : ""; }

std::string at_place(const Program& program, const RankPlace& place) {
  return is_case(program) ? "; " + place_text(program, place) : "";
}

// Returns "rank 2 (loss.py:41)" or "ranks 0, 1, 3".
std::string who(const Places& places) {
  std::vector<int> ranks;
  std::set<std::string> at;
  for (const RankPlace* place : places) {
    ranks.push_back(place->rank);
    at.insert(!place->seen_at.empty() ? place->seen_at : place->call ? place->call->place : "");
  }
  std::string text = ranks_text(ranks);
  if (at.size() == 1 && !at.begin()->empty()) text += " (" + *at.begin() + ")";
  return text;
}

std::int64_t elements(const NotedCall& call) {
  return std::accumulate(
      call.shape.begin(), call.shape.end(), std::int64_t{1}, [](std::int64_t a, std::int64_t b) {
        return b != 0 && a > (std::int64_t{1} << 50) / b ? std::int64_t{-1} : a * b;
      });
}

// Returns what the ranks of one collective must agree in.
std::string common_part(const NotedCall& call) {
  if (is_message(call)) return "message";
  return fmt::format("{}|{}|{}|{}|{}", call.kind, call.op, call.root, call.dtype,
                     call.sizes_agree ? elements(call) : -1);
}

// Returns true if one side of a message sends more than the other side's tensor holds.
bool is_too_long(const Places& sides) {
  std::int64_t sent = 0, room = -1;
  for (const RankPlace* place : sides)
    (place->call->kind == "send" ? sent : room) = elements(*place->call);
  return is_message(*sides.front()->call) && room >= 0 && sent > room;
}

// Sorts the largest cluster first; among equals the one with the lowest rank comes first.
std::vector<Places> by_size(std::map<std::string, Places> clusters) {
  std::vector<Places> sorted;
  for (auto& [key, places] : clusters) sorted.push_back(std::move(places));
  std::stable_sort(sorted.begin(), sorted.end(), [](const Places& a, const Places& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front()->rank < b.front()->rank;
  });
  return sorted;
}

std::map<std::string, Places> in_clusters(const Places& places,
                                          const std::function<std::string(const NotedCall&)>& key) {
  std::map<std::string, Places> clusters;
  for (const RankPlace* place : places) clusters[key(*place->call)].push_back(place);
  return clusters;
}

RankError error_at(const Program& program, ErrorKind kind, int rank, const RankPlace& where,
                   std::string message) {
  RankError error;
  error.kind = kind;
  error.rank = rank;
  const auto index = static_cast<std::size_t>(where.step);
  if (where.step >= 0 && index < program.steps.size()) error.step = program.steps[index].name;
  error.in_backward = !error.step.empty() &&
                      (where.phase == Phase::kBackward || (where.call && where.call->in_backward));
  error.message = std::move(message);
  return error;
}

// Describes clusters that do different things, the smaller ones first, as they deviate.
std::string told_apart(const std::vector<Places>& clusters,
                       const std::function<std::string(const NotedCall&)>& text) {
  std::vector<std::string> parts;
  for (auto cluster = clusters.rbegin(); cluster != clusters.rend(); ++cluster)
    parts.push_back(fmt::format("{} {} {}", who(*cluster),
                                cluster->size() == 1 ? "is in" : "are in",
                                text(*cluster->front()->call)));
  return fmt::format("{}", fmt::join(parts, "; "));
}

using CallKey = std::pair<std::string, std::uint64_t>;  // group and number

CallKey key_of(const NotedCall& call) { return {call.group, call.number}; }

std::map<CallKey, Places> ranks_by_call(std::span<const RankPlace> places) {
  std::map<CallKey, Places> calls;
  for (const RankPlace& place : places)
    if (is_in_call(place) && !place.call->is_between_two)
      calls[key_of(*place.call)].push_back(&place);
  return calls;
}

const RankPlace* place_of(std::span<const RankPlace> places, int rank) {
  const auto found = std::find_if(places.begin(), places.end(),
                                  [&](const RankPlace& p) { return p.rank == rank; });
  return found == places.end() ? nullptr : &*found;
}

// Returns true if the rank has entered the call, or may have: one with many groups does not report
// all.
bool has_entered(const RankPlace& place, const NotedCall& call) {
  const auto found = place.call->entered.find(call.group);
  return found == place.call->entered.end() ? !place.call->reported_all
                                            : found->second >= call.number;
}

// Returns the ranks of the group that have not entered the call, or none if that is unknown.
Places absent_from(const NotedCall& call, std::span<const RankPlace> places) {
  Places absent;
  for (const int rank : call.ranks) {
    const RankPlace* place = place_of(places, rank);
    if (!place || !place->call) return {};
    if (!has_entered(*place, call)) absent.push_back(place);
  }
  return absent;
}

// Returns the rank as it entered that collective, if known. It may have left it since.
std::optional<RankPlace> in_the_same(const RankPlace& place, const NotedCall& call) {
  if (place.state == RankPlace::State::kNotBegun || !place.call) return std::nullopt;
  for (const NotedCall& recent : place.call->recent) {
    if (key_of(recent) != key_of(call)) continue;
    RankPlace entered = place;
    entered.call = recent;
    entered.seen_at.clear();
    return entered;
  }
  return std::nullopt;
}

std::optional<RankError> difference_among(const Program& program, const Places& in_it) {
  const bool does_not_fit = is_too_long(in_it);
  const auto clusters = by_size(in_clusters(
      in_it, [&](const NotedCall& c) { return does_not_fit ? c.kind : common_part(c); }));
  if (clusters.size() < 2) return std::nullopt;
  const RankPlace& odd = *clusters.back().front();
  const std::string at = odd.step < 0 ? "" : at_place(program, odd);
  return error_at(program, ErrorKind::kDesync, odd.rank, odd,
                  fmt::format("the ranks differ in what should be one {}{}: {}{}",
                              does_not_fit ? "message" : "collective",
                              group_text(*odd.call, program), told_apart(clusters, text_of), at));
}

// Returns true if the rank waits in a call that another rank of the group has not entered, or
// entered differently.
bool is_unmet(const RankPlace& place, std::span<const RankPlace> places) {
  if (!is_in_call(place) || place.call->is_between_two) return false;
  if (!absent_from(*place.call, places).empty()) return true;
  return std::any_of(places.begin(), places.end(), [&](const RankPlace& other) {
    if (is_in_call(other) && key_of(*other.call) == key_of(*place.call))
      return common_part(*other.call) != common_part(*place.call);
    const auto entered = in_the_same(other, *place.call);
    return entered && common_part(*entered->call) != common_part(*place.call);
  });
}

// Returns true if the rank is past the place in the program where the call was entered, so that it
// will not enter any more.
bool has_gone_on(const RankPlace& place, const NotedCall& call) {
  if (place.state == RankPlace::State::kFinished) return true;
  if (place.state != RankPlace::State::kRunning || place.step < 0 || call.step < 0) return false;
  const bool in_backward = place.phase == Phase::kBackward;
  if (!in_backward && place.phase != Phase::kForward) return false;
  if (in_backward != call.in_backward) return in_backward;
  return in_backward ? place.step < call.step : place.step > call.step;
}

}  // namespace

std::optional<RankError> difference_error(const Program& program,
                                          std::span<const RankPlace> places) {
  for (const auto& [key, in_it] : ranks_by_call(places)) {
    std::vector<RankPlace> all;
    for (const RankPlace& place : places) {
      if (is_in_call(place) && key_of(*place.call) == key)
        all.push_back(place);
      else if (auto entered = in_the_same(place, *in_it.front()->call))
        all.push_back(std::move(*entered));
    }
    Places pointers;
    for (const RankPlace& place : all) pointers.push_back(&place);
    if (auto error = difference_among(program, pointers)) return error;
  }
  return std::nullopt;
}

std::optional<RankError> silent_difference(const Program& program,
                                           std::span<const std::vector<NotedCall>> entered) {
  std::map<CallKey, std::vector<RankPlace>> calls;
  for (std::size_t rank = 0; rank < entered.size(); ++rank)
    for (const NotedCall& call : entered[rank]) {
      if (call.is_between_two) continue;
      RankPlace place{static_cast<int>(rank), RankPlace::State::kFinished, call.step,
                      call.in_backward ? Phase::kBackward : Phase::kForward, call};
      place.call->sizes_agree = false;
      calls[key_of(call)].push_back(std::move(place));
    }
  for (const auto& [key, in_it] : calls) {
    Places pointers;
    for (const RankPlace& place : in_it) pointers.push_back(&place);
    if (auto error = difference_among(program, pointers)) return error;
  }
  return std::nullopt;
}

std::vector<int> awaited_ranks(std::span<const RankPlace> places) {
  std::set<int> ranks;
  for (const RankPlace& place : places) {
    if (!is_in_call(place)) continue;
    for (const RankPlace* absent : absent_from(*place.call, places))
      if (!is_in_call(*absent)) ranks.insert(absent->rank);
  }
  return {ranks.begin(), ranks.end()};
}

std::optional<RankError> absence_error(const Program& program, std::span<const RankPlace> places) {
  const std::vector<int> awaited = awaited_ranks(places);
  std::optional<std::pair<Places, Places>> most;  // who is absent, and who waits for them
  std::set<CallKey> unmet;
  Places waiting;
  for (const auto& [key, in_it] : ranks_by_call(places)) {
    Places absent = absent_from(*in_it.front()->call, places);
    if (absent.empty()) continue;
    unmet.insert(key);
    waiting.insert(waiting.end(), in_it.begin(), in_it.end());
    std::erase_if(absent, [&](const RankPlace* p) {
      return std::find(awaited.begin(), awaited.end(), p->rank) == awaited.end();
    });
    if (!absent.empty() && (!most || in_it.size() > most->second.size())) most = {absent, in_it};
  }
  if (most) {
    const auto& [absent, in_it] = *most;
    const NotedCall& call = *in_it.front()->call;
    const bool all_finished = std::all_of(absent.begin(), absent.end(), [](const RankPlace* p) {
      return p->state == RankPlace::State::kFinished;
    });
    const bool all_gone = std::all_of(absent.begin(), absent.end(),
                                      [&](const RankPlace* p) { return has_gone_on(*p, call); });
    const char* has = absent.size() == 1 ? "has" : "have";
    const std::string entered = (is_message(call) ? "entered the other end of " : "entered ") +
                                text_of(call) + group_text(call, program);
    // If most have gone on, those that wait are in a collective too many.
    const bool one_too_many = all_gone && absent.size() > in_it.size();
    return error_at(
        program, ErrorKind::kHang, one_too_many ? in_it.front()->rank : absent.front()->rank,
        *in_it.front(),
        fmt::format("{} {} {} {}, where {} {}{}", who(absent), has,
                    all_finished ? fmt::format("finished{} and never", the_case(program))
                    : all_gone   ? "gone on and never"
                                 : "not",
                    entered, who(in_it), in_it.size() == 1 ? "waits" : "wait",
                    at_place(program, *in_it.front())));
  }
  if (unmet.size() < 2) return std::nullopt;
  const auto clusters = by_size(in_clusters(
      waiting, [](const NotedCall& c) { return fmt::format("{}|{}", c.group, c.number); }));
  const RankPlace& odd = *clusters.back().front();
  return error_at(program, ErrorKind::kDesync, odd.rank, odd,
                  fmt::format("the ranks wait for each other in different collectives: {}{}",
                              told_apart(clusters,
                                         [&](const NotedCall& c) {
                                           return text_of(c) + group_text(c, program);
                                         }),
                              at_place(program, odd)));
}

std::string unmet_calls_text(std::span<const RankPlace> places) {
  Program none;
  none.world_size = static_cast<int>(places.size());
  std::optional<RankError> found = difference_error(none, places);
  if (!found) found = absence_error(none, places);
  return found ? found->message : "";
}

bool is_deadlock(const Program&, std::span<const RankPlace> places) {
  const bool nobody_goes_on =
      std::all_of(places.begin(), places.end(), [&](const RankPlace& place) {
        return place.state == RankPlace::State::kFinished || is_unmet(place, places);
      });
  return nobody_goes_on && std::any_of(places.begin(), places.end(), [](const RankPlace& place) {
           return place.state == RankPlace::State::kRunning;
         });
}

}  // namespace distgrad
