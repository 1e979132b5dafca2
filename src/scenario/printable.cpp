#include "scenario/printable.h"

#include <fmt/format.h>

namespace distgrad {
namespace {

// Length of the valid UTF-8 sequence at the start, 0 where there is none.
std::size_t sequence_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (length == 1) return 1;
  if (first < 0xc2 || first > 0xf4 || s.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return length;
}

// Control characters, C1 ones (U+0080 to U+009F) and those that turn the direction of writing
// included.
bool may_be_shown(std::string_view sequence) {
  const unsigned char first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first >= 0x20 && first != 0x7f;
  if (sequence.size() == 2)
    return !(first == 0xc2 && static_cast<unsigned char>(sequence[1]) < 0xa0);
  return sequence.substr(0, 2) != "\xe2\x80" && sequence.substr(0, 2) != "\xe2\x81";
}

}  // namespace

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  std::size_t shown = 0;
  while (!text.empty()) {
    if (shown++ == longest) return out + "...";
    const std::size_t length = sequence_length(text);
    if (length > 0 && may_be_shown(text.substr(0, length))) {
      out += text.substr(0, length);
      text.remove_prefix(length);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) { return '"' + printable(text) + '"'; }

}  // namespace distgrad
