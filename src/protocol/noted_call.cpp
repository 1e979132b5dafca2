#include "protocol/noted_call_json.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace distgrad {
namespace {

constexpr int kTries = 4;  // a rank writes for a microsecond
constexpr std::int64_t kMost = std::int64_t{1} << 50;

NotedCall parse_note(const Json& json) {
  NotedCall call = read_noted_call(json);
  for (const Json& entry : read_list(field(json, "entered")))
    call.entered[read_text(field(entry, "group"))] =
        static_cast<std::uint64_t>(read_integer(field(entry, "calls"), 0, kMost));
  if (const Json* reported_all = optional_field(json, "reported_all"))
    call.reported_all = read_bool(*reported_all);
  for (const Json& recent : read_list(field(json, "recent")))
    call.recent.push_back(read_noted_call(recent));
  return call;
}

}  // namespace

NotedCall read_noted_call(const Json& json) {
  NotedCall call;
  call.kind = read_text(field(json, "kind"));
  call.op = read_text(field(json, "op"));
  call.dtype = read_text(field(json, "dtype"));
  for (const Json& size : read_list(field(json, "shape")))
    call.shape.push_back(read_integer(size, 0, kMost));
  call.sizes_agree = read_bool(field(json, "sizes_agree"));
  call.root = read_int(field(json, "root"), -1);
  if (const Json* step = optional_field(json, "step")) call.step = read_int(*step, -1);
  call.in_backward = read_bool(field(json, "in_backward"));
  call.place = read_text(field(json, "place"));
  call.group = read_text(field(json, "group"));
  for (const Json& rank : read_list(field(json, "ranks"))) call.ranks.push_back(read_int(rank, 0));
  call.is_between_two = read_bool(field(json, "is_between_two"));
  call.number = static_cast<std::uint64_t>(read_integer(field(json, "number"), 0, kMost));
  return call;
}

Json write_noted_call(const NotedCall& call) {
  return {{"kind", call.kind},
          {"op", call.op},
          {"dtype", call.dtype},
          {"shape", call.shape},
          {"sizes_agree", call.sizes_agree},
          {"root", call.root},
          {"step", call.step},
          {"in_backward", call.in_backward},
          {"place", call.place},
          {"group", call.group},
          {"ranks", call.ranks},
          {"is_between_two", call.is_between_two},
          {"number", call.number}};
}

Json write_note(const NotedCall& call) {
  Json json = write_noted_call(call);
  json["entered"] = Json::array();
  for (const auto& [group, calls] : call.entered)
    json["entered"].push_back({{"group", group}, {"calls", calls}});
  json["reported_all"] = call.reported_all;
  json["recent"] = Json::array();
  for (const NotedCall& recent : call.recent) json["recent"].push_back(write_noted_call(recent));
  return json;
}

NotedCall read_note(const std::string& text) {
  return text.empty() ? NotedCall{} : parse_note(parse_header(text));
}

std::optional<NotedCall> read_note(const CallSlot& slot) {
  for (int i = 0; i < kTries; ++i) {
    const std::uint32_t version = slot.version;
    if (version == 0) return std::nullopt;
    if (version % 2 != 0) continue;
    std::array<char, sizeof slot.text> text;
    std::memcpy(text.data(), slot.text, text.size());
    const bool waits = slot.waits == 1;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.version != version) continue;
    NotedCall call;
    try {
      call = read_note(std::string(text.data(), std::find(text.begin(), text.end(), '\0')));
    } catch (const BadMessage&) {
      return std::nullopt;
    }
    call.version = version;
    call.waits = waits && !call.kind.empty();
    return call;
  }
  return std::nullopt;
}

}  // namespace distgrad
