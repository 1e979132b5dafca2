#include "scenario/printable.h"

#include "base/visible_text.h"

namespace distgrad {

std::string printable(std::string_view text, std::size_t longest) {
  return visible_text(text, Lines::kEscaped, longest);
}

std::string in_quotes(std::string_view text, std::size_t longest) {
  return '"' + printable(text, longest) + '"';
}

}  // namespace distgrad
