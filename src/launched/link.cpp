#include "launched/link.h"

#include <charconv>
#include <string_view>
#include <utility>

namespace distgrad {

SharedFrame encode(const LinkMessage& message) {
  std::string header = message.kind;
  for (const std::int64_t number : message.numbers) header += ' ' + std::to_string(number);
  header += '\n';
  header += message.text;
  return make_inline_frame(header, message.payload);
}

std::optional<LinkMessage> decode_link(Frame frame) {
  const std::size_t end = frame.header.find('\n');
  if (end == frame.header.npos) return std::nullopt;
  std::string_view line = std::string_view(frame.header).substr(0, end);
  LinkMessage message;
  message.kind = line.substr(0, line.find(' '));
  line.remove_prefix(message.kind.size());
  while (!line.empty()) {
    line.remove_prefix(1);
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), number);
    if (error != std::errc()) return std::nullopt;
    line.remove_prefix(static_cast<std::size_t>(stop - line.data()));
    if (!line.empty() && line[0] != ' ') return std::nullopt;
    message.numbers.push_back(number);
  }
  message.text = frame.header.substr(end + 1);
  message.payload = frame.payload;
  message.keeper = std::move(frame.keeper);
  return message;
}

}  // namespace distgrad
