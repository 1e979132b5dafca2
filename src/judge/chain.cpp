#include "judge/chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "judge/closeness.h"
#include "judge/phrases.h"
#include "judge/program_edits.h"
#include "judge/user_code_slack.h"

namespace distgrad {
namespace {

class Unhooked {
 public:
  Unhooked(const Program& program, const std::vector<double>& weights,
           const std::vector<CallOnRanks>& calls, const DistributedRun& run)
      : program_(program) {
    std::vector<Array> scale;
    for (const double w : weights) scale.push_back(Array::scalar(w));
    const std::string weight = unused_name(program, "start_weight");
    program_.inputs.push_back(local_input(weight, std::move(scale), false));
    std::string loss = fmt::format("{} * ({}).sum()", weight, program.loss.text);
    for (std::size_t c = 0, reported = 0, s = 0; s < program.steps.size(); ++s) {
      const std::size_t value = reported;
      reported += program.steps[s].is_reported();
      if (program.steps[s].collective()) loss += term_of(calls[c++], s, value, run);
    }
    drop_calls();
    program_.loss.text = std::move(loss);
    program_.truth.clear();
    program_.single_device.reset();
    for (Input& input : program_.inputs) input.sync.clear();
  }

  const Program& program() const { return program_; }

 private:
  std::string term_of(const CallOnRanks& call, std::size_t step, std::size_t value,
                      const DistributedRun& run) {
    std::vector<Array> outputs, given;
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
      outputs.push_back(run.ranks[r].steps[value]);
      given.push_back(call.given[r] ? *call.given[r] : zeros(call.operands[r].shape()));
    }
    const std::string operand = unused_name(program_, "operand_of_" + call.name());
    const std::string gradient = unused_name(program_, "given_to_" + call.name());
    program_.inputs.push_back(local_input(call.name(), std::move(outputs), true));
    program_.inputs.push_back(local_input(gradient, std::move(given), false));
    operands_.emplace_back(step, operand);
    return fmt::format(" + ({} * {}).sum()", operand, gradient);
  }

  void drop_calls() {
    for (const auto& [step, name] : operands_) {
      const Expression operand = program_.steps[step].collective()->operand;
      program_.steps[step].name = name;
      program_.steps[step].what = operand;
    }
  }

  Program program_;
  std::vector<std::pair<std::size_t, std::string>> operands_;  // step, its new name
};

const Gradient* named(const std::vector<Gradient>& gradients, const std::string& input) {
  for (const Gradient& g : gradients)
    if (g.input == input) return &g;
  return nullptr;
}

std::vector<Array> arrays(const Gradient& gradient) {
  std::vector<Array> all;
  for (const auto& part : gradient.parts) all.push_back(part ? *part : Array());
  return all;
}

bool has_parts_of_all(const DistributedRun& run, std::size_t inputs) {
  return std::all_of(run.ranks.begin(), run.ranks.end(),
                     [&](const RankResult& r) { return r.shares.size() == inputs; });
}

// Returns the ranks whose gradient differs from the chain rule's; a missing one counts as zeros.
std::vector<int> ranks_off(const std::vector<std::optional<Array>>& observed,
                           const std::vector<Array>& wanted, const std::vector<Array>& bounds) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < wanted.size(); ++r) {
    const Array seen = observed[r] ? *observed[r] : zeros(wanted[r].shape());
    if (seen.shape() != wanted[r].shape() ||
        !difference(seen.values(), wanted[r].values(), [&](std::size_t e) {
           return 2 * bounds[r].values()[e];
         }).equal)
      ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

std::vector<const CallOnRanks*> that_wrote_to_their_cotangents(
    const std::vector<CallOnRanks>& calls) {
  std::vector<const CallOnRanks*> wrote;
  for (const CallOnRanks& call : calls)
    if (std::any_of(call.cotangents_after.begin(), call.cotangents_after.end(),
                    [](const auto& after) { return after.has_value(); }))
      wrote.push_back(&call);
  return wrote;
}

// Holds what the chain rule gives through the program's expressions alone.
struct Chain {
  std::vector<std::vector<Array>> cotangents, cotangent_bounds;  // [call][rank]
  std::vector<std::vector<Array>> shares, share_bounds;          // [input that requires grad][rank]
};

// Returns nothing if that cannot be told: code calls, a gradient in the loss, an undecided branch.
std::optional<Chain> chain_of(Machine& machine, const Evidence& evidence,
                              const std::vector<CallOnRanks>& calls, const DistributedRun& run) {
  const Program& program = evidence.program();
  const std::vector<double> weights =
      backward_weights(program, evidence.which().objective, evidence.divides_replicated());
  SimulateRequest request;
  request.program = without_calls(program, weights, calls, run);
  request.weights = {std::vector<double>(weights.size(), 1.0)};
  request.leaves_by_rank = true;
  request.with_guards = false;
  const Simulation simulation =
      with_user_code_slack(machine.simulate(request), evidence.which().subject, program.dtype);
  if (simulation.invalid || !simulation.undecided.empty() || !simulation.forward_only.empty() ||
      simulation.gradients.size() != 1)
    return std::nullopt;
  Chain chain;
  const auto take = [&](const std::string& name, auto& values, auto& bounds) {
    const Gradient *value = named(simulation.gradients[0], name),
                   *bound = named(simulation.bounds, name);
    if (!value || !bound) return false;
    values.push_back(arrays(*value));
    bounds.push_back(arrays(*bound));
    return true;
  };
  for (const CallOnRanks& call : calls)
    if (!take(call.name(), chain.cotangents, chain.cotangent_bounds)) return std::nullopt;
  for (const Input* input : evidence.inputs())
    if (!take(input->name, chain.shares, chain.share_bounds)) return std::nullopt;
  return chain;
}

// Marks a cotangent or gradient that is not what the chain rule makes of what the calls gave.
struct Break {
  std::string what;
  const CallOnRanks* call;  // where it arrived; null for an input
  std::vector<int> ranks;
};

// Returns the breaks in the order of backward.
std::vector<Break> breaks_of(const Evidence& evidence, const Chain& chain,
                             const std::vector<CallOnRanks>& calls, const DistributedRun& run) {
  std::vector<Break> all;
  const auto add = [&](Break one) {
    if (!one.ranks.empty()) all.push_back(std::move(one));
  };
  for (std::size_t c = calls.size(); c-- > 0;)
    add({"The cotangent that arrived at step " + calls[c].name(), &calls[c],
         ranks_off(calls[c].cotangents, chain.cotangents[c], chain.cotangent_bounds[c])});
  for (std::size_t i = 0; i < evidence.inputs().size(); ++i) {
    std::vector<std::optional<Array>> shares;
    for (const RankResult& rank : run.ranks) shares.push_back(rank.shares[i]);
    add({"The gradient of " + evidence.inputs()[i]->name, nullptr,
         ranks_off(shares, chain.shares[i], chain.share_bounds[i])});
  }
  return all;
}

bool differ(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (std::size_t r = 0; r < a.size(); ++r)
    if (!std::ranges::equal(a[r].values(), b[r].values())) return true;
  return false;
}

// Returns the calls as if the backward of `call` had given ones more (ones, where it gave nothing).
std::vector<CallOnRanks> with_ones_more(const std::vector<CallOnRanks>& calls, std::size_t call) {
  std::vector<CallOnRanks> changed = calls;
  for (std::size_t r = 0; r < changed[call].given.size(); ++r) {
    const Array& operand = changed[call].operands[r];
    std::vector<double> ones(static_cast<std::size_t>(operand.size()), 1.0);
    if (const auto& given = calls[call].given[r]; given && given->shape() == operand.shape())
      std::ranges::transform(given->values(), ones.begin(), [](double g) { return g + 1; });
    changed[call].given[r] = Array(operand.shape(), std::move(ones));
  }
  return changed;
}

// Says, for each of the first `count` calls, whether its operand depends on an input that requires
// grad, through other calls too. It looks at what changes if the call's backward had given
// something else.
std::vector<bool> wanting_gradients(Machine& machine, const Evidence& evidence,
                                    const std::vector<CallOnRanks>& calls,
                                    const DistributedRun& run, const Chain& chain,
                                    std::size_t count) {
  std::vector<bool> wanting;
  for (std::size_t call = 0; call < count; ++call) {
    const auto other = chain_of(machine, evidence, with_ones_more(calls, call), run);
    bool wants = !other;
    for (std::size_t i = 0; !wants && i < chain.shares.size(); ++i)
      wants = differ(chain.shares[i], other->shares[i]);
    for (std::size_t c = 0; !wants && c < call; ++c)
      wants = wanting[c] && differ(chain.cotangents[c], other->cotangents[c]);
    wanting.push_back(wants);
  }
  return wanting;
}

// Returns the ranks on which no cotangent arrived at all. Expressions do pass cotangents on, so the
// call's output was not part of the graph there.
std::vector<int> cut_off_ranks(const Break& one) {
  std::vector<int> ranks;
  for (const int r : one.ranks)
    if (one.call && !one.call->cotangents[static_cast<std::size_t>(r)]) ranks.push_back(r);
  return ranks;
}

Finding cut_off(const CallOnRanks& call, std::vector<int> ranks, int world_size) {
  const std::string collective(traits(call.call().kind).name);
  std::string text = fmt::format(
      "The output of {} is cut off from the graph {}: no cotangent arrives at it, and its operand "
      "gets none from it. Use a differentiable collective: a plain torch.distributed call into a "
      "new tensor leads nothing back.",
      collective, on_ranks(ranks, world_size));
  return {"no-gradient", collective, call.name(), std::move(ranks), {}, std::move(text)};
}

// Takes the calls that are cut off from the graph out of `breaks`, and returns findings for those
// whose operand requires grad.
std::vector<Finding> cut_off_findings(Machine& machine, const Evidence& evidence,
                                      const std::vector<CallOnRanks>& calls,
                                      const DistributedRun& run, const Chain& chain,
                                      std::vector<Break>& breaks) {
  const auto position = [&](const Break& one) {
    return static_cast<std::size_t>(one.call - calls.data());
  };
  std::size_t count = 0;  // up to the last one that is cut off
  for (const Break& one : breaks)
    if (!cut_off_ranks(one).empty()) count = std::max(count, position(one) + 1);
  const auto wanting = wanting_gradients(machine, evidence, calls, run, chain, count);
  std::vector<Finding> findings;
  std::erase_if(breaks, [&](const Break& one) {
    std::vector<int> ranks = cut_off_ranks(one);
    if (ranks.empty()) return false;
    if (wanting[position(one)])
      findings.push_back(cut_off(*one.call, std::move(ranks), evidence.program().world_size));
    return true;
  });
  return findings;
}

bool have_one_shape(const CallOnRanks& a, const CallOnRanks& b) {
  for (std::size_t r = 0; r < a.operands.size(); ++r)
    if (a.operands[r].shape() != b.operands[r].shape()) return false;
  return true;
}

// Finds a call whose operand got what another call's should: all follows if it had been given that.
std::optional<Finding> shared_buffer(Machine& machine, const Evidence& evidence,
                                     const std::vector<CallOnRanks>& calls,
                                     const DistributedRun& run) {
  for (std::size_t c = 0; c < calls.size(); ++c)
    for (std::size_t other = 0; other < calls.size(); ++other) {
      if (other == c || calls[c].call().kind != calls[other].call().kind ||
          !have_one_shape(calls[c], calls[other]))
        continue;
      std::vector<CallOnRanks> swapped = calls;
      swapped[c].given = calls[other].given;
      const auto chain = chain_of(machine, evidence, swapped, run);
      if (!chain || !breaks_of(evidence, *chain, swapped, run).empty()) continue;
      const std::string collective(traits(calls[c].call().kind).name);
      return Finding{
          "stale-or-aliased",
          collective,
          calls[c].name(),
          evidence.differing_ranks(),
          {},
          fmt::format("The backward of {} gave its operand what is right, but that is then "
                      "overwritten: in the end the operand has what the backward of step {} gives "
                      "that one's, as where both write into one buffer. Give every call a buffer "
                      "of its own, or clone what is returned from one that is kept.",
                      collective, calls[other].name())};
    }
  return std::nullopt;
}

Finding overwritten(const CallOnRanks& call, const std::string& what, std::vector<int> ranks) {
  const std::string collective(traits(call.call().kind).name);
  return {
      "stale-or-aliased",
      collective,
      call.name(),
      std::move(ranks),
      {},
      fmt::format("{} does not follow from what the collectives gave: the backward of {} wrote to "
                  "the cotangent that it was handed, which something else reads as well. Clone the "
                  "cotangent first: what autograd hands to a backward must not be changed.",
                  what, collective)};
}

Finding unaccounted(const Break& one, int world_size) {
  std::string text = fmt::format(
      "{} does not follow from what the collectives gave {}: something writes to a gradient on its "
      "way between them. Look for a backward that keeps what it returned or was handed and changes "
      "it later, and for hooks.",
      one.what, on_ranks(one.ranks, world_size));
  return {"stale-or-aliased", "", one.call ? one.call->name() : "", one.ranks, {}, std::move(text)};
}

}  // namespace

Program without_calls(const Program& program, const std::vector<double>& weights,
                      const std::vector<CallOnRanks>& calls, const DistributedRun& observed) {
  return Unhooked(program, weights, calls, observed).program();
}

std::vector<Finding> chain_findings(Machine& machine, const Evidence& evidence,
                                    const std::vector<CallOnRanks>& calls,
                                    const DistributedRun& run) {
  if (has_code(evidence.program().steps) || !has_parts_of_all(run, evidence.inputs().size()))
    return {};
  const auto chain = chain_of(machine, evidence, calls, run);
  if (!chain) return {};
  std::vector<Break> breaks = breaks_of(evidence, *chain, calls, run);
  std::vector<Finding> findings = cut_off_findings(machine, evidence, calls, run, *chain, breaks);
  if (breaks.empty()) return findings;
  const std::size_t known = findings.size();
  for (const CallOnRanks* call : that_wrote_to_their_cotangents(calls))
    findings.push_back(overwritten(*call, breaks[0].what, breaks[0].ranks));
  if (findings.size() > known) return findings;
  if (auto finding = shared_buffer(machine, evidence, calls, run)) {
    findings.push_back(std::move(*finding));
    return findings;
  }
  for (const Break& one : breaks)
    findings.push_back(unaccounted(one, evidence.program().world_size));
  return findings;
}

}  // namespace distgrad
