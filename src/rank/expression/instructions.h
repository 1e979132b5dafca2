// Holds a compiled expression in its last form: operators to call one after the other, on numbered
// registers. We run it ourselves rather than through TorchScript's interpreter: what runs is
// exactly what was checked, an operator that throws is known with its place, loops are counted, and
// it is faster.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace distgrad {

struct Instruction;
struct Syntax;
using Instructions = std::vector<Instruction>;

struct Block {
  Instructions instructions;
  int parameter = -1;  // register of the loop's element
  int result = -1;     // register of the value; -1: the block is absent
};

struct Instruction {
  enum class Kind {
    kCall,          // operation(inputs) -> outputs
    kConditional,   // inputs[0] is a bool: blocks[0] if true, else blocks[1]
    kComprehension  // inputs[0] is a list: blocks[1] for each element for which blocks[0] (if
                    // present) is true
  };
  Kind kind = Kind::kCall;
  mutable torch::jit::Operation operation = nullptr;  // (calling one is not const in torch)
  std::vector<int> inputs;
  int device_input = -1;  // of a constructor: the input that says where; -1: constructor_device()
  int first_output = 0;
  int outputs = 1;
  std::size_t place = 0;  // in the text
  Block blocks[2];
  c10::TypePtr element_type;  // of a comprehension's list
};

struct InstructionList {
  std::vector<c10::IValue> constants;  // initial register contents; none if not constant
  Instructions instructions;
  int result = 0;
  // Has the constant registers that hold a number of the text, on which nothing else depends. The
  // syntax tree may be gone, so pointers may only be compared.
  std::vector<std::pair<int, const Syntax*>> literals;
};

// Replaces the constants in some registers.
using Replaced = std::vector<std::pair<int, c10::IValue>>;

// Loops of more turns, and longer ranges or lists, are refused, so that no expression can hang a
// rank or eat its memory.
inline constexpr std::int64_t kMaxIterations = 100000;
// Tensors of more elements are refused, views included.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 30;

// Puts `values` into registers 0 and up. Throws ExpressionError with the place of the operator that
// failed.
c10::IValue run_instructions(const InstructionList&, std::vector<c10::IValue> values,
                             const Replaced& replaced = {});

}  // namespace distgrad
