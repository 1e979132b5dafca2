// Turns an expression's tree back into text, and copies trees, for code that changes expressions
// instead of evaluating them.
#pragma once

#include <string>

#include "scenario/syntax.h"

namespace distgrad {

// Writes Python that parse_expression() reads as the same tree (places aside), with only the
// parentheses that it needs.
std::string text_of(const Syntax&);

SyntaxPtr copy_of(const Syntax&);

// Returns `tree` with `by` in place of every `name` from outside. A comprehension's variable
// captures an equal name in `by`.
SyntaxPtr substituted(const Syntax& tree, const std::string& name, const Syntax& by);

}  // namespace distgrad
