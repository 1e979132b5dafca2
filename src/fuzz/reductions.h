// Lists every way to make a scenario simpler by one thing. Internal to this folder, except for
// shrink.cpp and tests.
#pragma once

#include <string>
#include <vector>

#include "fuzz/document.h"

namespace distgrad {

struct Reduction {
  std::string what;  // "step y dropped", "world_size 4 -> 2"
  Document document;
};

using Reductions = std::vector<Reduction>;

// Each adds the reductions that it knows; they need not be valid.
void reduce_ranks(const Document&, Reductions&);        // world, mesh, groups
void reduce_steps(const Document&, Reductions&);        // drop, inline
void reduce_inputs(const Document&, Reductions&);       // drop, layouts, shapes, values
void reduce_options(const Document&, Reductions&);      // of the file and of collectives
void reduce_expressions(const Document&, Reductions&);  // subexpressions, constants

// Returns all that are lighter than the document (weight.h), the greatest steps first. The parser
// need not accept them; is_valid() tells.
Reductions reductions_of(const Document&);

}  // namespace distgrad
