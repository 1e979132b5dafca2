// The Python that scripts paste from as it stands: the collectives of the ranks in Python
// (src/python/distgrad/ranks/collectives) and the files of script/, embedded when built. Internal
// to this folder.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// A function, a class or an assignment at the left margin, without decorators; ends with a newline.
struct Definition {
  std::string name;
  std::string source;
  bool has_methods = false;  // of which a script needs those alone that it calls
};

// All there are, in the order of their files.
const std::vector<Definition>& definitions();

// The words of a piece of Python that are names, none of comments and strings. Those behind a dot
// are attributes.
struct Words {
  std::set<std::string> names, attributes;

  explicit Words(std::string_view python) { add(python); }
  void add(std::string_view python);
};

// A class without the methods that are nobody's attributes.
std::string with_methods(const Definition&, const std::set<std::string>& attributes);

// Collects what a script pastes, each once.
class Pasted {
 public:
  // The definition of this name; empty where there is none, or it has been taken.
  std::string take(const std::string& name);

  // The others that `script` names, and those that these name; in the order of their files. Of
  // classes the methods that somebody calls.
  std::vector<std::string> take_named_in(const std::string& script);

 private:
  std::set<std::string> taken_;
};

}  // namespace distgrad
