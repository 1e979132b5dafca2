// Holds a program with its expressions compiled and its names resolved to slots, for the simulator
// and for real ranks.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/program.h"
#include "rank/expression/expression.h"
#include "rank/expression/scalar_type.h"

namespace distgrad {

// Something in the program is wrong at this place of the scenario file.
class InvalidAt : public std::runtime_error {
 public:
  InvalidAt(std::string at, const std::string& message, std::string caret_text = {})
      : std::runtime_error(message), pointer(std::move(at)), caret(std::move(caret_text)) {}
  std::string pointer;
  std::string caret;
};

struct CompiledText {
  const Expression* source = nullptr;
  std::shared_ptr<const CompiledExpression> code;
  std::vector<int> slots;  // of the names that the code uses, in its order

  // Takes `values` indexed by slot. Throws InvalidAt.
  at::Tensor evaluate(const std::vector<c10::IValue>& values) const {
    return value(values).toTensor();
  }
  c10::IValue value(const std::vector<c10::IValue>& values) const;
};

struct CompiledStep {
  const Step* step = nullptr;
  int slot = 0;
  CompiledText text;                        // the step's expression, or the collective's operand
  std::vector<CompiledText> arguments;      // of a call of code, in place of `text`
  const Group* group = nullptr;             // collectives only; nullptr: the world
  bool reaches_loss = false;                // the loss depends on it, by name
  bool depends_on_gradient = false;         // it depends, by name, on an input that requires grad
  std::vector<bool> arguments_on_gradient;  // the same, of each argument
  std::vector<int> last_used;               // slots that no later step uses
};

struct CompiledProgram {
  // The program must outlive this. Expressions are compiled for `dtype` (the simulator's is
  // float64). Throws InvalidAt, also for a call of code unless `may_call_code`.
  CompiledProgram(const Program& program, DType dtype, bool may_call_code = false);

  const Program& program;
  std::vector<int> input_slots;  // of program.inputs
  std::vector<CompiledStep> steps;
  CompiledText loss;  // the loss, or the argument of squared_gradient_norm(...) if that is the loss
  bool loss_is_gradient_norm = false;
  int slot_count = 0;

  // Returns a rank's slots with `rank`, `world_size`, NAME_rank and NAME_size filled in.
  std::vector<c10::IValue> rank_slots(int rank) const;

 private:
  int add(const std::string& name, NameType type);
  CompiledText compiled(const Expression& expression, DType dtype,
                        NumberResult numbers = NumberResult::kRefuse) const;
  void trace_dependencies();

  Scope scope_;
  std::map<std::string, int> slot_of_;
  Expression inner_loss_;  // what `loss` is compiled from if it is not the program's
};

// Returns a rank's loss as a float64 scalar. Throws InvalidAt if it has not one element.
at::Tensor scalar_loss(const at::Tensor& loss, const Expression& text, int rank);

// Returns the argument of a loss squared_gradient_norm(...), nullopt for another loss. Throws
// InvalidAt.
std::optional<Expression> inner_of_gradient_norm(const Expression& loss);

// Returns the names a rank may use besides inputs and steps: rank, world_size, NAME_rank,
// NAME_size.
Scope rank_scope(const Program&);
// Returns the names for values that belong to no rank: world_size, and each NAME_size that is the
// same everywhere.
Scope size_scope(const Program&);
// Returns the value of such a name. `rank` is ignored for sizes that are the same everywhere.
std::int64_t value_of_name(const Program&, const std::string& name, int rank);

// Evaluates an expression that uses only such names (and `more`). Throws InvalidAt.
at::Tensor evaluate_alone(const Program&, const Expression&, const Scope&, int rank, DType dtype,
                          const std::map<std::string, c10::IValue>& more = {});

}  // namespace distgrad
