// Reduce the shapes and values of inputs. Internal to this folder.
#pragma once

#include "fuzz/reductions.h"

namespace distgrad {

void reduce_shapes(const Document&, Reductions&);
void reduce_values(const Document&, Reductions&);

}  // namespace distgrad
