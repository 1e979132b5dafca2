// What a backend's collectives do right, as a self-test found it or, before there was one, its
// sources say.
#pragma once

#include <map>
#include <string>

namespace distgrad {

// "all_reduce max Float" -> right. A name that is missing counts as wrong, and the collective is
// composed.
struct BackendTraits {
  std::string torch;   // the version that was tested
  std::string source;  // how it is known: "self-test", "sources"
  std::map<std::string, bool> right;
  std::map<std::string, std::string> why;  // of what is wrong
  bool untested = false;                   // the self-test itself: try everything

  bool offers(const std::string& what) const {
    if (untested) return true;
    const auto found = right.find(what);
    return found != right.end() && found->second;
  }
};

// Of NCCL, read from its sources and c10d's: what holds until a self-test has run on a machine with
// a GPU.
BackendTraits nccl_traits_by_its_sources();

}  // namespace distgrad
