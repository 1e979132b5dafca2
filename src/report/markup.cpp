#include "report/markup.h"

#include "report/valid_text.h"

namespace distgrad {
namespace {

std::string with_entities(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : valid_text(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"' && quotes)
      out += "&quot;";
    else if (c == '\'' && quotes)
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string markup_escaped(std::string_view text) { return with_entities(text, false); }

std::string html_escaped(std::string_view text) { return with_entities(text, true); }

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
