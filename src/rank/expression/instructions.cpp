#include "rank/expression/instructions.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <typeinfo>

#include "rank/expression/error_text.h"
#include "rank/expression/evaluation_scope.h"
#include "rank/expression/quotients.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

using c10::IValue;

// Python code that watches operators may raise: torch.utils.checkpoint does, once it has what it
// needs. The class is one of torch's that only Python's headers declare.
bool is_of_python(const std::exception& error) {
  return std::string_view(typeid(error).name()) == "12python_error";
}

class Run {
 public:
  Run(const InstructionList& list, std::vector<IValue> values, const Replaced& replaced)
      : registers_(list.constants) {
    for (const auto& [index, value] : replaced) registers_[index] = value;
    for (std::size_t i = 0; i < values.size(); ++i) registers_[i] = std::move(values[i]);
  }

  void run(const Instructions& instructions) {
    for (const Instruction& instruction : instructions) {
      switch (instruction.kind) {
        case Instruction::Kind::kCall:
          call(instruction);
          break;
        case Instruction::Kind::kConditional:
          conditional(instruction);
          break;
        case Instruction::Kind::kComprehension:
          comprehension(instruction);
          break;
      }
    }
  }

  IValue& at(int index) { return registers_[index]; }

 private:
  void call(const Instruction& instruction) {
    stack_.clear();
    for (int input : instruction.inputs) stack_.push_back(registers_[input]);
    if (instruction.device_input >= 0 && stack_[instruction.device_input].isNone())
      stack_[instruction.device_input] = constructor_device();
    try {
      check_quotients(stack_);
      instruction.operation(stack_);
    } catch (const ExpressionError&) {
      throw;
    } catch (const std::exception& error) {
      if (is_of_python(error)) throw;
      throw ExpressionError(error_text(error), instruction.place);
    }
    for (int i = 0; i < instruction.outputs; ++i) {
      check_elements(stack_[i], instruction.place);
      registers_[instruction.first_output + i] = std::move(stack_[i]);
    }
  }

  // An expanded tensor takes no memory, but may take forever.
  static void check_elements(const IValue& value, std::size_t place) {
    if (value.isTensor() && value.toTensor().numel() > kMaxElements)
      throw ExpressionError("a tensor of " + std::to_string(value.toTensor().numel()) +
                                " elements is too large for an expression",
                            place);
  }

  void conditional(const Instruction& instruction) {
    const Block& block = instruction.blocks[registers_[instruction.inputs[0]].toBool() ? 0 : 1];
    run(block.instructions);
    registers_[instruction.first_output] = registers_[block.result];
  }

  void comprehension(const Instruction& instruction) {
    const auto [condition_block, element_block] =
        std::tie(instruction.blocks[0], instruction.blocks[1]);
    const IValue source = registers_[instruction.inputs[0]];
    c10::impl::GenericList result(instruction.element_type);
    for (const IValue& element : source.toListRef()) {
      if (++iterations_ > kMaxIterations)
        throw ExpressionError("more than " + std::to_string(kMaxIterations) + " iterations",
                              instruction.place);
      if (condition_block.result >= 0) {
        registers_[condition_block.parameter] = element;
        run(condition_block.instructions);
        if (!registers_[condition_block.result].toBool()) continue;
      }
      registers_[element_block.parameter] = element;
      run(element_block.instructions);
      result.push_back(registers_[element_block.result]);
    }
    registers_[instruction.first_output] = std::move(result);
  }

  std::vector<IValue> registers_;
  torch::jit::Stack stack_;
  std::int64_t iterations_ = 0;
};

}  // namespace

IValue run_instructions(const InstructionList& list, std::vector<IValue> values,
                        const Replaced& replaced) {
  Run run(list, std::move(values), replaced);
  run.run(list.instructions);
  return std::move(run.at(list.result));
}

}  // namespace distgrad
