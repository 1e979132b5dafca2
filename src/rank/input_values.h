// Computes the values of a program's inputs, and how they lie on the ranks. Values are computed in
// float64 and rounded to the case's dtype once; the simulator takes the rounded values back to
// float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/program.h"
#include "model/run_result.h"
#include "rank/compiled_program.h"

namespace distgrad {

// Returns the value of a local input on one rank, in the program's dtype. Throws InvalidAt.
at::Tensor local_value(const Program&, const Input&, int rank);

// Returns the one logical tensor of an input that is not local, in the program's dtype. Throws
// InvalidAt.
at::Tensor full_value(const Program&, const Input&);

// Returns what each rank holds of the logical tensor: copies along replicated and invariant axes,
// torch.chunk's pieces along sharded ones. Indexed by rank. Differentiable; each axis costs two
// operators however many ranks there are.
std::vector<at::Tensor> laid_out(const Program&, const Input&, const at::Tensor& full);

// Returns a view that repeats the first element along each stride of 0; the value itself if none is
// 0.
at::Tensor repeated(const at::Tensor& value, const Strides&);
// Returns a copy that lies in memory as the strides say, with the value repeated as above.
at::Tensor laid_in_memory(const at::Tensor& value, const Strides&);

at::Tensor tensor_of(const Array&);  // float64
Array array_of(const at::Tensor&);   // any floating or integer dtype, on any device

}  // namespace distgrad
