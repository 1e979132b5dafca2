#include "base/visible_text.h"

#include <utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

namespace distgrad {
namespace {

// Returns whether a character shows nothing itself but changes how others are shown.
bool is_hidden(std::uint32_t c) {
  struct Range {
    std::uint32_t first, last;
  };
  constexpr std::array kRanges = {
      Range{0x7F, 0x9F},     Range{0xAD, 0xAD},     Range{0x61C, 0x61C},   Range{0x180B, 0x180F},
      Range{0x200B, 0x200F}, Range{0x2028, 0x202E}, Range{0x2060, 0x206F}, Range{0xFE00, 0xFE0F},
      Range{0xFEFF, 0xFEFF}, Range{0xFFF0, 0xFFFB}, Range{0xFFFE, 0xFFFF}, Range{0xE0000, 0xE0FFF}};
  for (const Range& range : kRanges)
    if (c >= range.first && c <= range.last) return true;
  return false;
}

std::string escape(std::uint32_t code) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(),
                code < 0x100     ? "\\x%02x"
                : code < 0x10000 ? "\\u%04x"
                                 : "\\U%08x",
                code);
  return text.data();
}

// GitHub's runner trims all that .NET takes for white space, some of it beyond ASCII.
bool may_be_trimmed(char c) { return c < '!' || c > '~'; }

}  // namespace

std::string visible_text(std::string_view text, Lines lines, std::size_t longest) {
  std::string out;
  auto at = text.begin(), valid_end = at;  // the text between them is UTF-8
  for (std::size_t shown = 0; at != text.end(); ++shown) {
    if (shown == longest) return out + "...";
    if (at == valid_end) valid_end = utf8::find_invalid(at, text.end());
    if (at == valid_end) {
      out += escape(static_cast<unsigned char>(*at++));
      valid_end = at;
      continue;
    }
    const auto first = at;
    const std::uint32_t code = utf8::unchecked::next(at);
    const bool is_break = code == '\n' || code == '\t';
    if (is_break ? lines == Lines::kEscaped : code < 0x20 || is_hidden(code))
      out += escape(code);
    else
      out.append(first, at);
  }
  return out;
}

std::string without_commands(std::string_view text, std::string_view line_so_far) {
  std::string out;
  bool begins = std::all_of(line_so_far.begin(), line_so_far.end(), may_be_trimmed);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (begins && rest.starts_with("::"))
      out += "\\u003a";
    else if (rest.starts_with("##[") || rest.starts_with("##vso["))
      out += "\\u0023";
    else
      out += text[i];
    begins = text[i] == '\n' || (begins && may_be_trimmed(text[i]));
  }
  return out;
}

}  // namespace distgrad
