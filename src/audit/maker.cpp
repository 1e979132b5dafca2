#include "audit/maker.h"

namespace distgrad {

using Json = AuditProgram::Json;

TrialMaker::TrialMaker(CollectiveKind kind, ReduceOp op, const BatteryOptions& options)
    : traits_(distgrad::traits(kind)),
      op_(op),
      options_(options),
      writer_(kind, op, options.objective) {}

bool TrialMaker::cuts() const { return traits_.takes_splits; }

bool TrialMaker::keeps_shape() const {
  return !traits_.joins() && (!cuts() || traits_.exchanges());
}

Json TrialMaker::random(Json shape) const {
  if (op_ == ReduceOp::kMin || op_ == ReduceOp::kMax)
    return {{"random", {{"shape", shape}, {"kind", "normal"}}}};
  const int low = op_ == ReduceOp::kProduct ? 1 : -3;
  return {{"random", {{"shape", shape}, {"kind", "integers"}, {"low", low}, {"high", 3}}}};
}

Json TrialMaker::ring(int size) const {
  Json pairs = Json::array();
  for (int r = 0; r < size; ++r) pairs.push_back({r, (r + 1) % size});
  return pairs;
}

AuditProgram TrialMaker::base(int ranks) const {
  AuditProgram p;
  p.ranks = ranks;
  p.inputs["x"] = random({2 * ranks, 3});
  if (traits_.takes_pairs) p.options["pairs"] = ring(ranks);
  return p;
}

AuditProgram TrialMaker::in_mode(const std::string& mode, int ranks) const {
  AuditProgram p = base(ranks_or(ranks));
  p.mode = mode;
  p.timeout_s = mode == "compile" ? 120 : 60;
  return p;
}

bool TrialMaker::is_first(Aspect aspect, const AuditProgram& p) const {
  return aspect == Aspect::kRanks && (is_of_one_size() || p.ranks == 2 || p.ranks == 3);
}

// Returns every form that no other one covers (counts_for), and for the first programs all forms.
std::vector<Trial::Loss> TrialMaker::losses(const AuditProgram& p, bool is_first) const {
  using Loss = Trial::Loss;
  const std::string& objective = options_.objective;
  std::vector<Loss> losses;
  if (objective.empty() || objective == "sum" || objective.starts_with("rank:"))
    losses.push_back(Loss::kSum);
  if (objective == "mean" || (objective.empty() && is_first)) losses.push_back(Loss::kMean);
  const bool differs = has_one_result(kind()) || enters_parallel_region(kind());
  const bool asks_for_one =
      objective == "replicated" || (objective.empty() && (differs || is_first));
  if (asks_for_one && writer_.can_be_one_loss(p)) losses.push_back(Loss::kOneLoss);
  if (objective.empty() && writer_.can_be_shares(p)) losses.push_back(Loss::kShares);
  return losses;
}

void TrialMaker::push(Aspect aspect, const std::string& name, const AuditProgram& p,
                      Trial::Loss loss) {
  trials_.push_back(writer_.trial(aspect, name, p, loss));
}

void TrialMaker::add(Aspect aspect, const std::string& name, const AuditProgram& p) {
  const bool first = is_first(aspect, p);
  const std::vector<Trial::Loss> all = losses(p, first);
  for (const Trial::Loss loss : all) {
    push(aspect, name, p, loss);
    trials_.back().is_first = first && loss == all.front();
  }
  // The ranks' own losses show which rule a backward follows that is right for one loss.
  if (first && options_.objective == "replicated" && !is_of_one_size())
    push(aspect, name, p, Trial::Loss::kSum);
}

void TrialMaker::add_for_own_losses(Aspect aspect, const std::string& name, const AuditProgram& p) {
  if (options_.objective == "replicated") return;
  push(aspect, name, p, options_.objective == "mean" ? Trial::Loss::kMean : Trial::Loss::kSum);
  trials_.back().may_count_once = kind() == CollectiveKind::kReduceScatter;
}

}  // namespace distgrad
