// What a simulation holds at least, counted before its memory is touched.
#pragma once

#include <cstdint>

#include "rank/compiled_program.h"

namespace distgrad {

// From so many bytes on the count is worth its time.
inline constexpr std::int64_t kWorthCounting = std::int64_t{64} << 20;

// At least, of all ranks' values; 0 where expressions say the shape.
std::int64_t declared_bytes(const Program& program, const Input& input);

// Runs the program on tensors that have a shape and no memory. Throws InvalidAt, at the step at
// which the values of all ranks do not fit into `allowed` bytes any more. What comes behind an
// expression that needs the numbers of a tensor (item()) is not counted, and nothing of what
// autograd and the error analysis keep besides.
void require_memory(const CompiledProgram& compiled, std::uint64_t allowed);

}  // namespace distgrad
