// Parses the scenario language: the part of Python's expression grammar that makes sense here.
// Torch's own parser differs from Python in places (chained comparisons, `not`, numbers, tuples in
// subscripts), reads statements too, and points at the wrong characters. Here whatever is not
// Python does not parse, and the refusal says where. It knows no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace distgrad {

// Says what is wrong with an expression, and at which byte of its text.
class ExpressionError : public std::runtime_error {
 public:
  ExpressionError(const std::string& message, std::size_t place)
      : std::runtime_error(message), place_(place) {}
  std::size_t place() const { return place_; }

 private:
  std::size_t place_;
};

struct Syntax;
using SyntaxPtr = std::unique_ptr<Syntax>;

struct Syntax {
  enum class Kind {
    kName,    // text
    kInt,     // integer
    kFloat,   // number
    kString,  // text, without the quotes
    kTrue,
    kFalse,
    kNone,
    kEllipsis,       // only as a subscript
    kList,           // children: elements
    kTuple,          // children: elements
    kComprehension,  // children: element, iterable, [condition]; targets
    kGenerator,      // the same without brackets, as the only argument of a call
    kAttribute,      // children: object; text: the attribute's name
    kCall,           // children: callee, positional arguments; keywords
    kSubscript,      // children: object, subscripts
    kSlice,          // children: start, stop, step, each may be null
    kUnary,          // text: "-", "+", "~", "not"; children: operand
    kBinary,         // text: the operator; children: left, right
    kCompare,        // text: the operator, "in" and "not in" too; children: left, right
    kAnd,            // children: two or more
    kOr,
    kConditional,  // children: condition, value if true, value if false
  };

  Kind kind{};
  std::size_t place = 0;  // the place of a caret: the name, the operator, the first character
  std::string text;
  std::int64_t integer = 0;
  double number = 0;
  std::vector<SyntaxPtr> children;
  std::vector<std::pair<std::string, SyntaxPtr>> keywords;
  std::vector<std::string> targets;  // a comprehension's variables
  int depth = 1;                     // of the tree below
};

// Throws ExpressionError.
SyntaxPtr parse_expression(const std::string& text);

// Returns the names that the expression uses from outside: not attributes, keywords or variables of
// comprehensions.
std::set<std::string> free_names(const Syntax&);
// Returns true if an expression's text uses this name. Throws ExpressionError.
bool takes_name(const std::string& expression, const std::string& name);

// Returns "torch.linalg.norm" for a chain of attributes that begins with a name, else "".
std::string dotted_name(const Syntax&);

}  // namespace distgrad
