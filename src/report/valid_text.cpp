#include "report/valid_text.h"

#include <cstdint>

#include "base/utf8.h"

namespace distgrad {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_allowed(std::uint32_t c) {
  if (c < 0x20) return c == '\n' || c == '\t';
  return !(c >= 0x7F && c < 0xA0) && c != 0xFFFE && c != 0xFFFF;
}

}  // namespace

std::string valid_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    if (next.bytes == 0)
      out += kReplacement;
    else if (is_allowed(next.code))
      out += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes == 0 ? 1 : next.bytes);
  }
  return out;
}

}  // namespace distgrad
