// Says what a backend's collectives do right, as a self-test found or, before there was one, its
// sources say.
#pragma once

#include <map>
#include <string>

namespace distgrad {

// Maps names such as "all_reduce max Float" to whether they are right. A missing name counts as
// wrong, and its collective is composed.
struct BackendTraits {
  std::string torch;   // the version that was tested
  std::string source;  // how it is known: "self-test", "sources"
  std::map<std::string, bool> right;
  std::map<std::string, std::string> why;  // for those that are wrong
  bool untested = false;                   // set in the self-test itself: try everything

  bool offers(const std::string& what) const {
    if (untested) return true;
    const auto found = right.find(what);
    return found != right.end() && found->second;
  }
};

// Returns what NCCL's and c10d's sources say. It holds until a self-test has run on a machine with
// a GPU.
BackendTraits nccl_traits_by_its_sources();

}  // namespace distgrad
