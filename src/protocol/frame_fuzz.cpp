// libFuzzer calls this: anything that a rank or a zygote sends must be a message or be refused, and
// anything on the board must be a note or none. Build and run it as the parser's
// (src/scenario/parse_fuzz.cpp).
#include <algorithm>
#include <cstdint>
#include <memory>

#include "protocol/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  distgrad::Frame frame;
  frame.header.assign(reinterpret_cast<const char*>(data), size);
  distgrad::decode_reply(frame);
  distgrad::decode_zygote_event(frame);

  distgrad::FrameParser parser;
  const auto room = parser.room(size);
  // memcpy does not take empty data.
  std::copy_n(data, size, reinterpret_cast<std::uint8_t*>(room.data()));
  parser.commit(size);
  while (std::holds_alternative<distgrad::Frame>(parser.next())) {
  }

  auto slot = std::make_unique<distgrad::CallSlot>();
  std::copy_n(data, std::min(size, sizeof slot->text), slot->text);
  slot->version = 2;
  distgrad::read_note(*slot);
  return 0;
}
