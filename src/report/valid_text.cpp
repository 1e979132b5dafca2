#include "report/valid_text.h"

#include <cstdint>

namespace distgrad {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Decoded {
  std::uint32_t character = 0;
  std::size_t bytes = 0;  // 0: no UTF-8
};

bool continues(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
Decoded decode(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return {};
  std::uint32_t character = first & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!continues(at(i))) return {};
    character = character << 6 | (at(i) & 0x3Fu);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
  if (character < kSmallest[bytes] || surrogate || character > 0x10FFFF) return {};
  return {character, bytes};
}

bool is_allowed(std::uint32_t c) {
  if (c < 0x20) return c == '\n' || c == '\t';
  return !(c >= 0x7F && c < 0xA0) && c != 0xFFFE && c != 0xFFFF;
}

}  // namespace

std::string valid_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded next = decode(text);
    if (next.bytes == 0)
      out += kReplacement;
    else if (is_allowed(next.character))
      out += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes == 0 ? 1 : next.bytes);
  }
  return out;
}

}  // namespace distgrad
