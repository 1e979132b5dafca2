#include "report/markup.h"

#include <fmt/format.h>

#include "report/valid_text.h"

namespace distgrad {
namespace {

std::string entity(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    default:
      return fmt::format("&#{};", static_cast<int>(static_cast<unsigned char>(c)));
  }
}

}  // namespace

std::string markup_escaped(std::string_view text, std::string_view also) {
  constexpr std::string_view kAlways = "&<>";
  std::string out;
  for (const char c : valid_text(text)) {
    const bool escapes =
        kAlways.find(c) != std::string_view::npos || also.find(c) != std::string_view::npos;
    if (escapes)
      out += entity(c);
    else
      out += c;
  }
  return out;
}

std::string html_escaped(std::string_view text) { return markup_escaped(text, "\"'"); }

std::string html_prose(std::string_view text) {
  std::string out;
  while (true) {
    const std::size_t open = text.find('`');
    const std::size_t close = open == text.npos ? open : text.find('`', open + 1);
    if (close == text.npos) return out + html_escaped(text);
    out += html_escaped(text.substr(0, open)) + "<code>" +
           html_escaped(text.substr(open + 1, close - open - 1)) + "</code>";
    text.remove_prefix(close + 1);
  }
}

}  // namespace distgrad
