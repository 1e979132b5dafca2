// Collects the Python that scripts paste unchanged: the collectives of the ranks in Python
// (src/python/distgrad/ranks/collectives) and the files of script/, all embedded when built.
// Internal to this folder.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// Holds a function, a class or an assignment at the left margin, without decorators. The source
// ends with a newline.
struct Definition {
  std::string name;
  std::string source;
  bool has_methods = false;  // a script needs only those methods that it calls
};

// Returns all definitions in the order of their files.
const std::vector<Definition>& definitions();

// Holds the words of a piece of Python, without those in comments and strings. Words after a dot
// are attributes.
struct Words {
  std::set<std::string> names, attributes;

  explicit Words(std::string_view python) { add(python); }
  void add(std::string_view python);
};

// Returns the class without the methods that are not among `attributes`; "__" methods always stay.
std::string with_methods(const Definition&, const std::set<std::string>& attributes);

// Collects the definitions that a script pastes, each once.
class Pasted {
 public:
  // Returns the definition of this name; empty where there is none or it was already taken.
  std::string take(const std::string& name);

  // Returns the remaining definitions that `script` names, and those that these name, in the order
  // of their files. Classes keep only the methods that are called.
  std::vector<std::string> take_named_in(const std::string& script);

 private:
  std::set<std::string> taken_;
};

}  // namespace distgrad
