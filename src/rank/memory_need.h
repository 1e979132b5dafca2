// Computes the least memory that a simulation holds, before its memory is touched.
#pragma once

#include <cstdint>

#include "rank/compiled_program.h"

namespace distgrad {

// Counting pays off from this many bytes on.
inline constexpr std::int64_t kWorthCounting = std::int64_t{64} << 20;

// Returns a lower bound for the input's values on all ranks; 0 if an expression decides the shape.
std::int64_t declared_bytes(const Program& program, const Input& input);

// Runs the program on tensors that have a shape and no memory. Throws InvalidAt at the first step
// where the values of all ranks exceed `allowed` bytes. Counts nothing behind an expression that
// needs the numbers of a tensor (item()), and nothing that autograd and the error analysis keep.
void require_memory(const CompiledProgram& compiled, std::uint64_t allowed);

}  // namespace distgrad
