// Collects the battery's trials: each program in every form that the objectives need.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "audit/battery.h"
#include "audit/program.h"

namespace distgrad {

class TrialMaker {
 public:
  TrialMaker(CollectiveKind kind, ReduceOp op, const BatteryOptions& options);

  CollectiveKind kind() const { return traits_.kind; }
  const CollectiveTraits& traits() const { return traits_; }
  ReduceOp op() const { return op_; }
  bool cuts() const;         // it gives each rank a piece of the operand
  bool keeps_shape() const;  // along dim 0, with even pieces

  // Return how many ranks a program has if any number will do, and if it needs one more, or two
  // groups of equal size.
  int ranks() const { return options_.world_size > 0 ? options_.world_size : 3; }
  int ranks_or(int wanted) const { return options_.world_size > 0 ? options_.world_size : wanted; }
  bool is_of_one_size() const { return options_.world_size > 0; }

  AuditProgram base(int ranks) const;
  AuditProgram base() const { return base(ranks()); }
  // Returns the same with what a mode needs, which may have to be imported first, and with more
  // time for the machine.
  AuditProgram in_mode(const std::string& mode, int ranks) const;

  // Returns distinct values without ties or zeros, which are an aspect of their own. Sums of them
  // are exact in any order.
  AuditProgram::Json random(AuditProgram::Json shape) const;
  AuditProgram::Json ring(int size) const;

  void add(Aspect aspect, const std::string& name, const AuditProgram& program);
  void add_for_own_losses(Aspect aspect, const std::string& name, const AuditProgram& program);

  std::vector<Trial> take() { return std::move(trials_); }

 private:
  std::vector<Trial::Loss> losses(const AuditProgram& program, bool is_first) const;
  bool is_first(Aspect aspect, const AuditProgram& program) const;
  void push(Aspect aspect, const std::string& name, const AuditProgram& program, Trial::Loss loss);

  const CollectiveTraits& traits_;
  ReduceOp op_;
  BatteryOptions options_;
  ProgramWriter writer_;
  std::vector<Trial> trials_;
};

// Adds the aspects on request: what surrounds the collective in a training script.
void add_surroundings(TrialMaker& maker, Aspect aspect);

}  // namespace distgrad
