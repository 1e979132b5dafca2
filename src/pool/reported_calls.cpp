#include "pool/reported_calls.h"

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "pool/stalled.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

RankPlace place_in(const Json& json) {
  RankPlace place;
  place.rank = read_int(field(json, "rank"), 0);
  place.state = read_bool(field(json, "is_finished")) ? RankPlace::State::kFinished
                                                      : RankPlace::State::kRunning;
  if (const Json& note = field(json, "note"); !note.is_null()) {
    place.call = read_note(read_text(note));
    place.call->waits = read_bool(field(json, "waits")) && !place.call->kind.empty();
  }
  return place;
}

}  // namespace

std::string unmet_calls(const std::string& notes) {
  std::vector<RankPlace> places;
  try {
    const Json json = parse_header(notes);
    for (const Json& rank : read_list(json)) places.push_back(place_in(rank));
  } catch (const BadMessage& error) {
    throw UserError(fmt::format("{}: {}", kUnmetCallsWord, error.what()));
  }
  return unmet_calls_text(places);
}

}  // namespace distgrad
