// An expression's tree back as text, and copies of trees: what changes expressions instead of
// evaluating them needs.
#pragma once

#include <string>

#include "scenario/syntax.h"

namespace distgrad {

// Python text that parse_expression() reads as the same tree (places aside), with the parentheses
// that it needs and no others.
std::string text_of(const Syntax&);

SyntaxPtr copy_of(const Syntax&);

// `tree` with `by` in place of every name `name` that is taken from outside. A variable of a
// comprehension that `by` has as a name of its own captures it there.
SyntaxPtr substituted(const Syntax& tree, const std::string& name, const Syntax& by);

}  // namespace distgrad
