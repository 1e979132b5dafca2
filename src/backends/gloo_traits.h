// What the Gloo inside the linked torch does right, as the self-test found it.
#pragma once

#include <map>
#include <string>

namespace distgrad {

// "all_reduce max float32" -> right. A name that is missing counts as wrong, and the collective is composed.
struct GlooTraits {
  std::string torch;  // the version that was tested
  std::map<std::string, bool> right;
  std::map<std::string, std::string> why;  // of what is wrong
  bool untested = false;                   // the self-test itself: try everything

  bool offers(const std::string& what) const {
    if (untested) return true;
    const auto found = right.find(what);
    return found != right.end() && found->second;
  }
};

}  // namespace distgrad
