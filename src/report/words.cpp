#include "report/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/visible_text.h"

namespace distgrad {
namespace {

void append_array(std::string& out, const Array& array, std::size_t dim, std::int64_t& next,
                  int digits) {
  if (dim == array.shape().size()) {
    out += number_text(array[next++], digits);
    return;
  }
  out += '[';
  for (std::int64_t i = 0; i < array.shape()[dim]; ++i) {
    if (i > 0) out += ", ";
    append_array(out, array, dim + 1, next, digits);
  }
  out += ']';
}

}  // namespace

std::string array_text(const Array& array, int digits) {
  std::string out;
  std::int64_t next = 0;
  append_array(out, array, 0, next, digits);
  return out;
}

std::string index_text(std::span<const std::int64_t> index) {
  return index.empty() ? std::string() : fmt::format("[{}]", fmt::join(index, ", "));
}

std::string seconds_text(double seconds) {
  if (seconds >= 60) {
    const long whole = std::lround(seconds);
    return fmt::format("{} min {} s", whole / 60, whole % 60);
  }
  if (seconds >= 10) return fmt::format("{:.0f} s", seconds);
  return seconds >= 0.1 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.1g} s", seconds);
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string padded(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(width - std::min(width, width_of(text)), ' ');
}

std::string padded_left(std::string_view text, std::size_t width) {
  return std::string(width - std::min(width, width_of(text)), ' ') + std::string(text);
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line;
    out += '\n';
    line.clear();
  };
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!line.empty() && indent + width_of(line) + 1 + width_of(word) > width) end_line();
    if (!word.empty()) {
      if (!line.empty()) line += ' ';
      line += word;
    }
    if (end == text.size() || text[end] == '\n') end_line();
    at = end + 1;
  }
  return out;
}

std::string indented(std::string_view text, std::size_t indent) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) out += std::string(indent, ' ');
    out += text.substr(0, end);
    out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string for_terminal(std::string_view text) { return visible_text(text, Lines::kKept); }

std::string on_one_line(std::string_view text) { return visible_text(text, Lines::kEscaped); }

std::string short_formula(const std::string& formula) {
  constexpr std::size_t kShown = 4;
  constexpr std::string_view kBetween = "; ";
  std::size_t equations = 1, cut = formula.size();
  for (std::size_t at = 0; (at = formula.find(kBetween, at)) != std::string::npos;
       at += kBetween.size())
    if (++equations == kShown + 1) cut = at;
  if (equations <= kShown + 1) return formula;
  const std::size_t legend = formula.rfind(", d_r ");
  return fmt::format("{}; … ({} more, see --json){}", formula.substr(0, cut), equations - kShown,
                     legend == std::string::npos ? "" : formula.substr(legend));
}

std::string shell_quoted(std::string_view word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string as_typed(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  const bool is_plain = !word.empty() && word.find_first_not_of(kPlain) == word.npos;
  return is_plain ? std::string(word) : shell_quoted(word);
}

}  // namespace distgrad
