// The values of a program's inputs, and how they lie on the ranks. Values are computed in float64
// and rounded to the case's dtype once; the simulator takes the rounded values back to float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/program.h"
#include "model/run_result.h"
#include "rank/compiled_program.h"

namespace distgrad {

// The value of a local input on one rank, in the program's dtype. Throws InvalidAt.
at::Tensor local_value(const Program&, const Input&, int rank);

// The one logical tensor of an input that is not local, in the program's dtype. Throws InvalidAt.
at::Tensor full_value(const Program&, const Input&);

// What each rank holds of the logical tensor, by rank: copies along replicated and invariant axes,
// pieces as torch.chunk cuts them along sharded ones. Differentiable; each axis costs two operators
// however many ranks there are.
std::vector<at::Tensor> laid_out(const Program&, const Input&, const at::Tensor& full);

// The first element for all along each stride of 0; the value itself where there is none. A view.
at::Tensor repeated(const at::Tensor& value, const Strides&);
// A copy, the value repeated, that lies in memory as the strides say.
at::Tensor laid_in_memory(const at::Tensor& value, const Strides&);

at::Tensor tensor_of(const Array&);  // float64
Array array_of(const at::Tensor&);   // any floating or integer dtype, on any device

}  // namespace distgrad
