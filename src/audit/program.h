// Builds the battery's programs, and makes scenario files of them under each objective.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "audit/trial.h"

namespace distgrad {

// Weighs each element in the loss by its number, so that mixed-up cotangents show.
std::string weighted(const std::string& value);

// Describes one collective call and what surrounds it.
struct AuditProgram {
  using Json = nlohmann::ordered_json;
  using Steps = std::vector<std::pair<std::string, std::string>>;

  int ranks = 3;
  Json inputs, groups, mesh;
  Steps before;
  std::string operand = "x";
  Json options = Json::object();
  std::string more_collective;  // the operand of a second call, whose step is z
  Steps after;
  std::string loss = "(y * y).sum() + " + weighted("y");
  // Replaces `loss` if all ranks compute one loss of what they share; "" means the same loss.
  std::string one_loss;
  bool uses_operand = false;  // a rank's own values reach the loss in another way, too
  bool is_uneven = false;
  bool may_raise = false;  // in forward: functions for rings alone do
  std::string dtype;
  std::string mode;  // of the subject
  // This is long since a torch custom operator's first call imports for seconds, on every rank.
  int timeout_s = 30;
};

class ProgramWriter {
 public:
  // `objective` replaces "sum" for the ranks' own losses ("rank:1"); "" keeps that of each form.
  ProgramWriter(CollectiveKind kind, ReduceOp op, std::string objective);

  // Returns true if the program can end in a single loss.
  bool can_be_one_loss(const AuditProgram& program) const;
  bool can_be_shares(const AuditProgram& program) const;

  Trial trial(Aspect aspect, const std::string& name, const AuditProgram& program,
              Trial::Loss loss) const;

 private:
  AuditProgram::Json call(const AuditProgram& program, const std::string& operand) const;
  AuditProgram::Json steps(const AuditProgram& program) const;
  void finish(const AuditProgram& program, Trial::Loss loss, AuditProgram::Json& file) const;
  // Returns true if operand or result is shared, so that the ranks' own losses and one loss for all
  // differ.
  bool shares_something() const;
  const std::string& one_loss_of(const AuditProgram& program) const;
  void end_in_one_loss(const AuditProgram& program, AuditProgram::Json& file) const;
  void hold_everywhere(const AuditProgram& program, const char* layout,
                       AuditProgram::Json& file) const;

  const CollectiveTraits& traits_;
  ReduceOp op_;
  std::string objective_;
};

}  // namespace distgrad
