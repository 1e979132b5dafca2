#include "base/pattern.h"

#include "base/error.h"

namespace distgrad {

Pattern::Pattern(const char* expression) {
  if (regcomp(&compiled_, expression, REG_EXTENDED) != 0)
    throw SystemError(std::string("not a pattern: ") + expression);
}

Pattern::~Pattern() { regfree(&compiled_); }

std::vector<std::string> Pattern::find(const std::string& text) const {
  std::vector<regmatch_t> places(compiled_.re_nsub + 1);
  if (text.find('\0') != text.npos ||
      regexec(&compiled_, text.c_str(), places.size(), places.data(), 0) != 0)
    return {};
  std::vector<std::string> found;
  for (const auto& [begin, end] : places)
    found.push_back(begin < 0 ? ""
                              : text.substr(static_cast<std::size_t>(begin),
                                            static_cast<std::size_t>(end - begin)));
  return found;
}

}  // namespace distgrad
