#include "diagnose/hypotheses.h"

#include <algorithm>

#include "diagnose/reach.h"
#include "diagnose/rewriting.h"
#include "diagnose/sync_mistakes.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

bool keeps_shape(const CollectiveCall& c) {
  return c.kind == kAllReduce || c.kind == kReduce || c.kind == kBroadcast || c.kind == kCopy;
}
bool is_sum(const CollectiveCall& c) { return c.op == ReduceOp::kSum; }
bool takes_op(const CollectiveCall& c) { return traits(c.kind).takes_op; }

bool has_a_peer(const CollectiveCall& call, const Program& program) {
  if (call.group.empty()) return program.world_size > 1;
  const Group* group = program.group_named(call.group);
  return !group || std::any_of(group->partition.begin(), group->partition.end(),
                               [](const auto& list) { return list.size() > 1; });
}

bool is_narrower(std::string_view rule, DType dtype) {
  for (const DType narrow : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    if (rule.ends_with(traits(narrow).name))
      return traits(narrow).significand_bits < traits(dtype).significand_bits;
  return false;
}

// Where a rank is alone in its group there is little to get wrong: a premul_sum's factor, a
// division by an operand that is 0, or the whole path.
bool shows_alone(std::string_view rule, const CollectiveCall& call) {
  return rule == "none" || rule == "out_over_x" || rule == "sum_out_over_x" ||
         (rule == "forgotten_op" && call.op == ReduceOp::kPremulSum);
}

struct Applicability {
  std::string_view rule;
  bool (*applies)(const CollectiveCall&);
};

bool communicates(const CollectiveCall& c) { return c.kind != kCopy && c.kind != kSlice; }
bool is_linear(const CollectiveCall& c) {
  return !takes_op(c) || is_sum(c) || c.op == ReduceOp::kAvg || c.op == ReduceOp::kPremulSum;
}
bool multiplies(const CollectiveCall& c) { return takes_op(c) && c.op == ReduceOp::kProduct; }
bool picks(const CollectiveCall& c) {
  return takes_op(c) && (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax);
}
bool exchanges(const CollectiveCall& c) { return c.kind == kAllToAll || c.kind == kSendRecv; }

// Whether the ranks' operands have cotangents of their own, not one that all share.
bool has_rows(const CollectiveCall& c) {
  return c.kind == kAllGather || c.kind == kGather || exchanges(c) ||
         (takes_op(c) && !is_linear(c));
}
// Whether it matters which rank a cotangent comes from, beyond its being counted.
bool has_columns(const CollectiveCall& c) {
  return c.kind == kReduceScatter || c.kind == kScatter || exchanges(c);
}

// Where each rule differs from the adjoint (src/rules computes them). What is the adjoint itself
// there, such as same_op for a sum, or another rule of the table, explains nothing more.
constexpr Applicability kApplicable[] = {
    // rule, calls
    {"identity", [](const CollectiveCall& c) { return keeps_shape(c) && c.kind != kCopy; }},
    {"same_op", [](const CollectiveCall& c) { return c.kind == kAllReduce && !is_sum(c); }},
    {"forgotten_op", [](const CollectiveCall& c) { return takes_op(c) && !is_sum(c); }},
    {"own_slice", [](const CollectiveCall& c) { return c.kind == kAllGather; }},
    {"sum_to_all",
     [](const CollectiveCall& c) {
       return keeps_shape(c) && !(c.kind == kAllReduce && is_sum(c));
     }},
    {"gather", [](const CollectiveCall& c) { return c.kind == kSlice; }},
    {"divided", communicates},
    {"multiplied", communicates},
    {"out_over_x", [](const CollectiveCall& c) { return c.kind == kAllReduce && multiplies(c); }},
    {"sum_out_over_x",
     [](const CollectiveCall& c) { return c.kind == kAllReduce && multiplies(c); }},
    {"own_full_to_ties", [](const CollectiveCall& c) { return c.kind == kAllReduce && picks(c); }},
    {"full_to_ties", [](const CollectiveCall& c) { return c.kind == kAllReduce && picks(c); }},
    {"leftovers", [](const CollectiveCall& c) { return c.kind == kBroadcast; }},
    {"own_part",
     [](const CollectiveCall& c) {
       return communicates(c) && c.kind != kAllGather && !(c.kind == kAllReduce && is_sum(c));
     }},
    {"others_part", communicates},
    {"reduced_twice",
     [](const CollectiveCall& c) {
       return c.kind == kAllGather || c.kind == kAllToAll || (takes_op(c) && !is_linear(c));
     }},
    {"next_slice", has_rows},
    {"previous_slice", has_rows},
    {"mirrored_slice", has_rows},
    {"first_slice",
     [](const CollectiveCall& c) { return c.kind == kAllGather || c.kind == kGather; }},
    {"own_slices_summed", [](const CollectiveCall& c) { return c.kind == kAllGather; }},
    {"next_cotangent", has_columns},
    {"previous_cotangent", has_columns},
    {"mirrored_cotangent", has_columns},
    {"first_place", [](const CollectiveCall& c) { return c.kind == kSlice; }},
    {"not_exchanged", exchanges},
    {"sent_forward", [](const CollectiveCall& c) { return c.kind == kSendRecv; }},
    {"all_to_each_tie", [](const CollectiveCall& c) { return c.kind != kAllReduce && picks(c); }},
    {"all_to_first_tie", picks},
    {"total_out_over_x",
     [](const CollectiveCall& c) { return c.kind != kAllReduce && multiplies(c); }},
    {"total_out_over_x_or_0", multiplies},
    {"operand_as_stored", [](const CollectiveCall& c) { return takes_op(c) && !is_linear(c); }},
};

std::vector<const Step*> collectives_of(const Program& program) {
  std::vector<const Step*> steps;
  for (const Step& step : program.steps)
    if (step.collective()) steps.push_back(&step);
  return steps;
}

bool is_order(std::string_view rule) {
  const auto rewriting = rewriting_named(rule);
  return rewriting && rewriting->kind == Rewriting::Kind::kOrder;
}

void add_joint(std::vector<Hypothesis>& all, Hypothesis hypothesis) {
  if (hypothesis.size() < 2 || all.size() >= kMostJoint) return;
  for (const Hypothesis& known : all)
    if (known.size() == hypothesis.size() && is_part_of(known, hypothesis)) return;
  all.push_back(std::move(hypothesis));
}

bool names_step(const Hypothesis& hypothesis, const RuleChoice& choice) {
  return std::any_of(hypothesis.begin(), hypothesis.end(), [&](const RuleChoice& c) {
    return c.step == choice.step && c.rule == choice.rule;
  });
}

}  // namespace

Hypothesis of_backward(const Hypothesis& hypothesis) {
  Hypothesis on_steps;
  for (const RuleChoice& choice : hypothesis)
    if (!sync_mistake_named(choice.rule)) on_steps.push_back(choice);
  return on_steps;
}

bool is_in_use(std::string_view rule) {
  const auto rows = library_rows();
  return rule == "sum_to_all" || rule == "none" ||
         std::any_of(rows.begin(), rows.end(), [&](const LibraryRow& r) { return r.rule == rule; });
}

std::optional<double> scaling_factor(std::string_view rule, const CollectiveCall& call,
                                     const Program& program) {
  const Group* group = call.group.empty() ? nullptr : program.group_named(call.group);
  const std::size_t size = group ? group->partition[0].size()
                                 : static_cast<std::size_t>(program.world_size);
  if (group && std::any_of(group->partition.begin(), group->partition.end(),
                           [&](const auto& list) { return list.size() != size; }))
    return std::nullopt;
  const auto n = static_cast<double>(size);
  if (rule == "divided") return 1 / n;
  if (rule == "multiplied") return n;
  const bool averages = takes_op(call) && call.op == ReduceOp::kAvg;
  if (rule == "forgotten_op" && averages) return n;
  if (rule == "forgotten_op" && takes_op(call) && call.op == ReduceOp::kPremulSum && call.factor != 0)
    return 1 / call.factor;
  if (rule == "sum_to_all" && averages && call.kind == kAllReduce) return n;
  return std::nullopt;
}

bool is_part_of(const Hypothesis& part, const Hypothesis& whole) {
  return std::all_of(part.begin(), part.end(),
                     [&](const RuleChoice& c) { return names_step(whole, c); });
}

Hypothesis library_hypothesis(const std::vector<const Step*>& steps, std::string_view library) {
  Hypothesis hypothesis;
  for (const Step* step : steps) {
    const auto rule = rule_of(library, step->collective()->kind, step->collective()->op);
    if (!rule || *rule == "raises") return {};
    if (*rule != "adjoint") hypothesis.push_back({step->name, std::string(*rule)});
  }
  return hypothesis;
}

bool is_rule_set(std::string_view subject) {
  const auto rows = subjects();
  return std::any_of(rows.begin(), rows.end(), [&](const SubjectRow& row) {
    return row.name == subject && row.how == "rules";
  });
}

bool may_explain(const BackwardRuleRow& rule, const CollectiveCall& call, const Program& program) {
  if (rule.finding.empty()) return false;
  if (rule.finding == "precision" && !is_narrower(rule.name, program.dtype)) return false;
  if (!shows_alone(rule.name, call) && !has_a_peer(call, program)) return false;
  for (const Applicability& row : kApplicable)
    if (row.rule == rule.name) return row.applies(call);
  return true;
}

std::vector<Hypothesis> single_hypotheses(const Program& program) {
  const Reach reach(program);
  std::vector<const Step*> steps;
  for (const Step* step : collectives_of(program))
    if (!reach.inputs_behind(step->name).empty()) steps.push_back(step);
  std::vector<Hypothesis> all;
  const auto propose = [&](const Step& step, std::string rule) {
    if (all.size() < kMostSingle) all.push_back({{step.name, std::move(rule)}});
  };
  const auto propose_rules = [&](bool in_use) {
    for (const BackwardRuleRow& rule : backward_rules())
      for (const Step* step : steps)
        if (is_in_use(rule.name) == in_use && may_explain(rule, *step->collective(), program))
          propose(*step, std::string(rule.name));
  };
  const auto propose_rewritings = [&](bool of_order) {
    for (const Step* step : steps)
      for (std::string& rewriting : rewritings_of(program, *step))
        if (is_order(rewriting) == of_order) propose(*step, std::move(rewriting));
  };
  propose_rules(true);
  propose_rewritings(true);  // says why the slice or the root is another
  propose_rules(false);
  propose_rewritings(false);
  return all;
}

std::vector<Hypothesis> sync_hypotheses(const Program& program) {
  std::vector<Hypothesis> all;
  for (const Input& input : program.inputs)
    if (input.requires_grad)
      for (std::string& mistake : sync_mistakes_of(program, input))
        all.push_back({{input.name, std::move(mistake)}});
  return all;
}

std::vector<Hypothesis> joint_sync_hypotheses(const Program& program) {
  std::vector<Hypothesis> all;
  for (const Hypothesis& single : sync_hypotheses(program)) {
    const std::string& mistake = single[0].rule;
    const auto same = std::find_if(all.begin(), all.end(), [&](const Hypothesis& h) {
      return h[0].rule == mistake;
    });
    if (same == all.end()) {
      all.push_back(single);
    } else {
      same->push_back(single[0]);
    }
  }
  std::erase_if(all, [](const Hypothesis& h) { return h.size() < 2; });
  return all;
}

std::vector<Hypothesis> joint_hypotheses(const Program& program, const std::string& subject) {
  const std::vector<const Step*> steps = collectives_of(program);
  std::vector<Hypothesis> all;
  if (is_rule_set(subject)) add_joint(all, library_hypothesis(steps, subject));
  for (const BackwardRuleRow& rule : backward_rules()) {
    Hypothesis everywhere;
    for (const Step* step : steps)
      if (may_explain(rule, *step->collective(), program))
        everywhere.push_back({step->name, std::string(rule.name)});
    add_joint(all, everywhere);
    for (const Step* like : steps) {
      Hypothesis alike;
      for (const Step* step : steps)
        if (step->collective()->kind == like->collective()->kind &&
            step->collective()->op == like->collective()->op &&
            may_explain(rule, *step->collective(), program))
          alike.push_back({step->name, std::string(rule.name)});
      add_joint(all, std::move(alike));
    }
  }
  for (const SubjectRow& row : subjects())
    if (row.how == "rules") add_joint(all, library_hypothesis(steps, row.name));
  return all;
}

}  // namespace distgrad
