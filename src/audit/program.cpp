#include "audit/program.h"

#include <fmt/format.h>

#include "scenario/syntax.h"

namespace distgrad {
namespace {

using Json = AuditProgram::Json;

// Returns true for several groups that are not a mesh's axis.
bool has_several_groups(const AuditProgram& p) {
  if (p.groups.is_null()) return false;
  const Json& partition = p.groups.at("g");
  return !partition.is_array() || partition.size() > 1;
}

Json objective_of(const AuditProgram& p, Trial::Loss loss, const std::string& asked) {
  if (loss == Trial::Loss::kOneLoss || loss == Trial::Loss::kShares) {
    if (p.mesh.is_null()) return "replicated";
    return {{"dp", "sum"}, {"tp", "replicated"}};
  }
  if (asked.starts_with("rank:")) return {{"rank", std::stoi(asked.substr(asked.find(':') + 1))}};
  return loss == Trial::Loss::kMean ? "mean" : "sum";
}

// Names the form; the form of the battery's objective has no ending.
std::string_view ending_of(Trial::Loss loss, std::string_view objective) {
  using Loss = Trial::Loss;
  const Loss usual = objective == "mean"         ? Loss::kMean
                     : objective == "replicated" ? Loss::kOneLoss
                                                 : Loss::kSum;
  if (loss == usual) return "";
  if (loss == Loss::kShares) return "-shares";
  return loss == Loss::kSum ? "-sum" : loss == Loss::kMean ? "-mean" : "-one-loss";
}

}  // namespace

std::string weighted(const std::string& value) {
  return fmt::format("({0} * torch.arange({0}.numel()).reshape({0}.shape)).sum()", value);
}

ProgramWriter::ProgramWriter(CollectiveKind kind, ReduceOp op, std::string objective)
    : traits_(traits(kind)), op_(op), objective_(std::move(objective)) {}

Json ProgramWriter::call(const AuditProgram& p, const std::string& operand) const {
  Json call;
  call[std::string(traits_.name)] = operand;
  if (traits_.takes_op) call["op"] = std::string(name_of(op_));
  if (traits_.takes_op && op_ == ReduceOp::kPremulSum) call["factor"] = 0.5;
  for (const auto& [key, value] : p.options.items()) call[key] = value;
  return call;
}

Json ProgramWriter::steps(const AuditProgram& p) const {
  Json steps = Json::array();
  for (const auto& [step, text] : p.before) steps.push_back({{step, text}});
  steps.push_back({{"y", call(p, p.operand)}});
  if (!p.more_collective.empty()) steps.push_back({{"z", call(p, p.more_collective)}});
  for (const auto& [step, text] : p.after) steps.push_back({{step, text}});
  return steps;
}

// Values that every rank has are no longer each rank's share: under one loss they cannot go through
// such a collective again, and a rank's own values must not reach the loss another way.
bool ProgramWriter::can_be_one_loss(const AuditProgram& p) const {
  if (!shares_something()) return true;
  const bool is_chained = !p.more_collective.empty() && takes_name(p.more_collective, "y");
  if (is_chained || has_several_groups(p) || (p.uses_operand && p.one_loss.empty())) return false;
  return enters_parallel_region(traits_.kind) || !takes_name(p.loss, "rank");
}

// Holds if all ranks hold the operand and compute the same from it: nothing is communicated, and
// the result is one tensor, too.
bool ProgramWriter::can_be_shares(const AuditProgram& p) const {
  return traits_.kind == CollectiveKind::kCopy && can_be_one_loss(p) &&
         !takes_name(one_loss_of(p), "rank") && (!p.mesh.is_null() || p.groups.is_null());
}

bool ProgramWriter::shares_something() const {
  return has_one_result(traits_.kind) || enters_parallel_region(traits_.kind);
}

const std::string& ProgramWriter::one_loss_of(const AuditProgram& p) const {
  return shares_something() && !p.one_loss.empty() ? p.one_loss : p.loss;
}

// Ends in an all_reduce that passes the cotangent on, as in Megatron, if the ranks' results differ.
// The operand of a copy or slice is a weight that every rank holds and whose whole gradient each
// must get.
void ProgramWriter::end_in_one_loss(const AuditProgram& p, Json& file) const {
  Json total = {{"all_reduce", fmt::format("({}) * (rank + 1)", one_loss_of(p))}};
  if (!p.mesh.is_null()) total["group"] = "tp";
  file["steps"].push_back({{"total", total}});
  file["loss"] = "total";
  if (enters_parallel_region(traits_.kind)) hold_everywhere(p, "invariant", file);
}

void ProgramWriter::hold_everywhere(const AuditProgram& p, const char* layout, Json& file) const {
  Json& x = file["inputs"]["x"];
  if (x.contains("by_rank")) x = {{"value", Json(x["by_rank"][0])}};
  if (p.mesh.is_null())
    x["layout"] = layout;
  else
    x["layout"] = {{"dp", "replicate"}, {"tp", layout}};
}

void ProgramWriter::finish(const AuditProgram& p, Trial::Loss loss, Json& file) const {
  // The ranks' weights are inside then.
  const bool is_whole = p.loss.starts_with("squared_gradient_norm");
  if (loss == Trial::Loss::kShares) {
    file["loss"] = one_loss_of(p);
    hold_everywhere(p, "replicate", file);
  } else if (loss != Trial::Loss::kOneLoss)
    file["loss"] = is_whole ? p.loss : fmt::format("({}) * (rank + 1)", p.loss);
  else if (has_one_result(traits_.kind))
    file["loss"] = one_loss_of(p);
  else
    end_in_one_loss(p, file);
  file["objective"] = objective_of(p, loss, objective_);
  file["timeout_s"] = p.timeout_s;
}

Trial ProgramWriter::trial(Aspect aspect, const std::string& name, const AuditProgram& p,
                           Trial::Loss loss) const {
  Trial trial;
  trial.aspect = aspect;
  trial.loss = loss;
  trial.program = name;
  trial.name = name + std::string(ending_of(loss, objective_));
  trial.is_uneven = p.is_uneven;
  trial.may_raise = p.may_raise;
  trial.has_splits = p.options.contains("splits");
  trial.needs_all_reduce = loss == Trial::Loss::kOneLoss && !has_one_result(traits_.kind);
  trial.mode = p.mode;
  Json file;
  file["note"] = fmt::format("audit of {}: {}", traits_.name, trial.name);
  if (!p.mesh.is_null())
    file["mesh"] = p.mesh;
  else
    file["world_size"] = p.ranks;
  if (!p.groups.is_null()) file["groups"] = p.groups;
  if (!p.dtype.empty()) file["dtype"] = p.dtype;
  file["inputs"] = p.inputs;
  file["steps"] = steps(p);
  finish(p, loss, file);
  trial.scenario = file.dump(1);
  return trial;
}

}  // namespace distgrad
