// Characters of a text in UTF-8, of which nothing is known: it may hold any bytes. Our own: what a
// library adds to these lines is what to do about wrong bytes, and here they are shown as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace distgrad {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: no UTF-8
};

// Of a text that is not empty. As RFC 3629 has it: no overlong forms, no surrogates, nothing above
// U+10FFFF.
Character first_character(std::string_view text);

}  // namespace distgrad
