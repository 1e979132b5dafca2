// Parses text that is one number and nothing else.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace distgrad {

template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace distgrad
