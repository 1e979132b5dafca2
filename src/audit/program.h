// What the battery's programs are made of, and how they become scenario files under each objective.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "audit/trial.h"

namespace distgrad {

// An element's weight in the loss is its number: cotangents that are mixed up show.
std::string weighted(const std::string& value);

// One collective call and what is around it.
struct AuditProgram {
  using Json = nlohmann::ordered_json;
  using Steps = std::vector<std::pair<std::string, std::string>>;

  int ranks = 3;
  Json inputs, groups, mesh;
  Steps before;
  std::string operand = "x";
  Json options = Json::object();
  std::string more_collective;  // the operand of a second call, named z
  Steps after;
  std::string loss = "(y * y).sum() + " + weighted("y");
  std::string
      one_loss;  // in its place where all ranks compute one loss of what they share; "": the same
  bool uses_operand = false;  // what each rank has of its own reaches the loss by another way, too
  bool is_uneven = false;
  std::string dtype;
  std::string mode;  // of the subject
  int timeout_s =
      30;  // the first call of a torch custom operator imports for seconds, on every rank
};

class ProgramWriter {
 public:
  // `objective`: what the ranks' own losses are written under in place of "sum" ("rank:1"); "": as
  // each form has it.
  ProgramWriter(CollectiveKind kind, ReduceOp op, std::string objective);

  // Whether the program can be one that ends in a single loss.
  bool can_be_one_loss(const AuditProgram& program) const;
  bool can_be_shares(const AuditProgram& program) const;

  Trial trial(Aspect aspect, const std::string& name, const AuditProgram& program,
              Trial::Loss loss) const;

 private:
  AuditProgram::Json call(const AuditProgram& program, const std::string& operand) const;
  AuditProgram::Json steps(const AuditProgram& program) const;
  void finish(const AuditProgram& program, Trial::Loss loss, AuditProgram::Json& file) const;
  bool shares_something()
      const;  // operand or result, so that losses of the ranks' own and one loss for all differ
  const std::string& one_loss_of(const AuditProgram& program) const;
  void end_in_one_loss(const AuditProgram& program, AuditProgram::Json& file) const;
  void hold_everywhere(const AuditProgram& program, const char* layout,
                       AuditProgram::Json& file) const;

  const CollectiveTraits& traits_;
  ReduceOp op_;
  std::string objective_;
};

}  // namespace distgrad
