// How well wrong backward rules are caught and named: every hypothesis of the diagnosis, made a mutant, on every collective of
// given scenarios. tools/diagnosis_table.py makes the scenarios and the table of docs/diagnosis.md from what this prints.
//
//   diagnosis_sweep [--pairs] [--ranks] [--seconds S] [--seed N] [--show] FILE.json...
//
// The mutant's gradients come from a simulation, with an error of the size that the dtype allows added (or, with --ranks, from
// real ranks, which run the mutant). One line a mutant is printed, tab-separated:
//
//   mutant, finding, collective, op, caught (0, 1), named (0, 1), named first (0, 1), a simpler explanation fits (0, 1), microseconds, what was found
//
// Mutants that change nothing within the bounds, or leave nothing but zeros (except `none`), are left out. --pairs mutates two collectives at once.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "diagnose/diagnose.h"
#include "diagnose/rewriting.h"
#include "diagnose/search.h"
#include "diagnose/sync_mistakes.h"
#include "gradients/closeness.h"
#include "gradients/objective_truths.h"
#include "model/libraries.h"
#include "pool/workshop.h"
#include "rank/simulator.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  bool pairs = false;
  bool ranks = false;
  bool show = false;
  double seconds = 50;
  unsigned seed = 0;
  std::vector<std::string> files;
};

struct Subject {
  Case which;
  SimulateRequest asked;
  Simulation truth;
};

// What the ranks hold after a sync that may be wrong; nothing where that cannot be.
std::optional<std::vector<Gradient>> held(const Subject& s, std::vector<Gradient> gradients, const Hypothesis& mutant = {}) {
  std::size_t g = 0;
  for (const Input& input : s.asked.program.inputs) {
    if (!input.requires_grad) continue;
    std::vector<SyncMistake> mistakes;
    for (const RuleChoice& choice : mutant)
      if (const auto mistake = sync_mistake_named(choice.rule); mistake && choice.step == input.name) mistakes.push_back(*mistake);
    auto parts = synchronised(s.asked.program, input, mistakes, gradients[g].parts);
    if (!parts) return std::nullopt;
    gradients[g++].parts = std::move(*parts);
  }
  return gradients;
}

std::optional<Simulation> simulated(const Subject& s, const Hypothesis& mutant) {
  SimulateRequest request;
  request.program = s.asked.program;
  request.rules = rewrite(request.program, of_backward(mutant));
  request.weights = {backward_weights(s.asked.program, s.which.objective, true)};
  request.leaves_by_rank = true;
  request.with_guards = false;
  Simulation result = simulate(request);
  if (result.invalid || !result.forward_only.empty() || !result.undecided.empty()) return std::nullopt;
  return result;
}

// A value that real ranks might have come to: off by up to half the bound, in the case's dtype.
double disturbed(double value, double bound, DType dtype, std::mt19937& random) {
  if (!(bound > 0) || !std::isfinite(value) || !std::isfinite(bound)) return value;
  std::uniform_real_distribution<double> off(-0.5, 0.5);
  const double moved = value + off(random) * bound;
  const double rounded = rounded_to(dtype, moved);
  return std::abs(rounded - value) <= bound ? rounded : value;
}

std::vector<Gradient> disturbed(std::vector<Gradient> gradients, const std::vector<Gradient>& bounds, DType dtype,
                                std::mt19937& random) {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    for (std::size_t r = 0; r < gradients[i].parts.size(); ++r) {
      const auto& part = gradients[i].parts[r];
      const auto& bound = bounds[i].parts[r];
      std::vector<double> values(part->values().begin(), part->values().end());
      for (std::size_t e = 0; e < values.size(); ++e) values[e] = disturbed(values[e], bound->values()[e], dtype, random);
      gradients[i].parts[r] = Array(part->shape(), std::move(values));
    }
  return gradients;
}

// Whether what must equal the truth is further from it than mutant and truth may both be off.
bool is_visible(const Subject& s, const std::vector<Gradient>& exact, const std::vector<Gradient>& bounds) {
  const auto divisors = leftover_divisors(s.asked.program, s.which.objective, true);
  std::size_t g = 0;
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const Input& input = s.asked.program.inputs[i];
    if (!input.requires_grad) continue;
    const auto& truth = s.truth.gradients[0][g].parts;
    const Shape full = truth[0]->shape();
    const auto parts = assemble(s.asked.program, input, full, divided(exact[g].parts, divisors[i]));
    const auto slack = assemble(s.asked.program, input, full, divided(bounds[g].parts, divisors[i]));
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::size_t t = input.is_local() ? p : 0;
      if (!parts[p].value || !slack[p].value || parts[p].value->shape() != truth[t]->shape()) continue;
      for (std::int64_t e = 0; e < truth[t]->size(); ++e) {
        const double allowed = (*slack[p].value)[e] * 2 + (*s.truth.bounds[g].parts[t])[e] * 2;
        if (!within((*parts[p].value)[e], (*truth[t])[e], allowed)) return true;
      }
    }
    ++g;
  }
  return false;
}

// That all is zero does not show what cut it off.
bool is_zero(const std::vector<Gradient>& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [](const Gradient& g) {
    return std::all_of(g.parts.begin(), g.parts.end(), [](const auto& p) { return !p || largest_magnitude(p->values()) == 0; });
  });
}

DistributedRun as_run(const Subject& s, const std::vector<Gradient>& gradients) {
  DistributedRun run;
  for (int r = 0; r < s.asked.program.world_size; ++r) {
    RankResult rank;
    rank.loss = s.truth.losses[static_cast<std::size_t>(r)];
    for (const Gradient& g : gradients) rank.gradients.push_back(g.parts[static_cast<std::size_t>(r)]);
    for (const StepValue& step : s.truth.steps) rank.steps.push_back(step.by_rank[static_cast<std::size_t>(r)]);
    run.ranks.push_back(std::move(rank));
  }
  return run;
}

std::string finding_of(const RuleChoice& choice) {
  if (const auto mistake = sync_mistake_named(choice.rule)) return std::string(finding_of(mistake->kind));
  if (const auto rewriting = rewriting_named(choice.rule)) return std::string(finding_of(rewriting->kind));
  for (const BackwardRuleRow& row : backward_rules())
    if (row.name == choice.rule) return std::string(choice.rule == "none" ? "missing-reduction" : row.finding);
  return "";
}

// Nothing for an input.
const CollectiveCall* call_of(const Program& program, const std::string& step) {
  const auto found = std::find_if(program.steps.begin(), program.steps.end(), [&](const Step& s) { return s.name == step; });
  return found == program.steps.end() ? nullptr : found->collective();
}

// The program whose sync is what the mutant makes of it; false where no program says that.
bool mutate_sync(Input& input, const SyncMistake& mistake) {
  const auto entry = std::find_if(input.sync.begin(), input.sync.end(), [&](const auto& e) { return e.first == mistake.axis; });
  if (entry == input.sync.end()) return false;
  switch (mistake.kind) {
    case SyncMistake::Kind::kForgotten: input.sync.erase(entry); return true;
    case SyncMistake::Kind::kOtherOp:
      entry->second = entry->second == Input::Sync::kMean ? Input::Sync::kSum : Input::Sync::kMean;
      return true;
    case SyncMistake::Kind::kTwice: input.sync.insert(entry, *entry); return true;
    case SyncMistake::Kind::kGroup: entry->first = mistake.group == "world" ? "" : mistake.group; return true;
    default: return false;
  }
}

class Sweep {
 public:
  explicit Sweep(const Options& options) : options_(options), random_(options.seed) {
    if (options.ranks) workshop_.emplace(WorkshopOptions{.rank_commands = {{std::string(DISTGRAD_BIN_DIR) + "/distgrad-rank"}}});
  }

  void run() {
    const auto end = Clock::now() + std::chrono::duration<double>(options_.seconds);
    for (const std::string& file : options_.files) {
      if (Clock::now() > end) break;
      const Scenario scenario = load_scenario(file);
      for (const Case& c : expand(scenario, {}, "2.15.0")) {
        if (const auto subject = prepared(c)) mutate(*subject);
        break;
      }
    }
  }

 private:
  std::optional<Subject> prepared(Case c) {
    c.subject = "reference";  // whose weights make the adjoint right under every objective
    Subject s{c, {}, {}};
    s.asked.program = program_for(c);
    s.asked.weights = weights_to_ask(s.asked.program, c.objective, Detail::kEveryRank);
    s.truth = simulate(s.asked);
    if (c.world_size < 3 || s.truth.invalid || !s.truth.undecided.empty() || !s.truth.forward_only.empty() ||
        check_replicated(s.asked, c.objective, s.truth) || s.truth.gradients[0].empty())
      return std::nullopt;
    // What no adjoint satisfies (an invariant input's share, say) is wrong without a mutant.
    const auto adjoint = simulated(s, {});
    if (!adjoint || is_visible(s, *held(s, adjoint->gradients[0]), *held(s, adjoint->bounds))) return std::nullopt;
    return s;
  }

  void mutate(const Subject& s) {
    const auto mutants = single_hypotheses(s.asked.program);
    if (!options_.pairs) {
      for (const Hypothesis& mutant : mutants) judge(s, mutant);
      for (const Hypothesis& mutant : sync_hypotheses(s.asked.program)) judge(s, mutant);
      return;
    }
    std::vector<Hypothesis> in_use;
    for (const Hypothesis& mutant : mutants)
      if (is_in_use(mutant[0].rule)) in_use.push_back(mutant);
    for (int i = 0; i < 6 && in_use.size() > 1; ++i) {
      const RuleChoice a = in_use[random_() % in_use.size()][0], b = in_use[random_() % in_use.size()][0];
      if (a.step != b.step && both_show(s, a, b)) judge(s, {a, b});
    }
  }

  // Each changes what the other leaves.
  bool both_show(const Subject& s, const RuleChoice& a, const RuleChoice& b) const {
    const auto first = simulated(s, {a}), second = simulated(s, {b}), both = simulated(s, {a, b});
    if (!first || !second || !both || numbers_in(both->gradients[0]) < 4) return false;
    const auto differs = [&](const Simulation& x, const Simulation& y) {
      for (std::size_t i = 0; i < x.gradients[0].size(); ++i)
        for (std::size_t r = 0; r < x.gradients[0][i].parts.size(); ++r) {
          const auto one = x.gradients[0][i].parts[r]->values(), other = y.gradients[0][i].parts[r]->values();
          const auto bound = y.bounds[i].parts[r]->values();
          if (!difference(one, other, [&](std::size_t e) { return 4 * bound[e]; }).equal) return true;
        }
      return false;
    };
    return differs(*first, *both) && differs(*second, *both);
  }

  // Different ones, other than 0. Of fewer than four the diagnosis believes no two rules at once.
  static std::size_t numbers_in(const std::vector<Gradient>& gradients) {
    std::set<double> numbers;
    for (const Gradient& g : gradients)
      for (const auto& part : g.parts)
        for (const double v : part->values())
          if (v != 0) numbers.insert(std::abs(v));
    return numbers.size();
  }

  static bool is_in_use(const std::string& rule) {
    const auto rows = library_rows();
    return rule != "none" && std::any_of(rows.begin(), rows.end(), [&](const LibraryRow& row) { return row.rule == rule; });
  }

  void judge(const Subject& s, const Hypothesis& mutant) {
    const auto simulation = simulated(s, mutant);
    if (!simulation) return;
    // A cast widens the bounds by as much as it rounds, but ranks round just so: the adjoint's error is all they may add.
    const auto bounded = finding_of(mutant[0]) == "precision" ? simulated(s, {}) : simulation;
    const auto exact = held(s, simulation->gradients[0], mutant), bounds = held(s, bounded->bounds, mutant);
    if (!exact || !bounds || !is_visible(s, *exact, *bounds) || (is_zero(*exact) && mutant[0].rule != "none")) return;
    DistributedRun run = as_run(s, disturbed(*exact, *bounds, s.asked.program.dtype, random_));
    if (options_.ranks && !run_for_real(s, mutant, run)) return;
    const CaseComparison comparison = compare(s.which, s.asked, s.truth, &run);
    const std::clock_t start = std::clock();
    std::vector<Finding> findings;
    const Evidence evidence(s.which, s.asked, s.truth, comparison);
    if (!comparison.gradients_equal()) findings = diagnose(evidence, simulate);
    const auto us = static_cast<long long>(std::clock() - start) * 1000000 / CLOCKS_PER_SEC;
    const bool is_simpler = mutant.size() > 1 && !comparison.gradients_equal() && has_simpler(evidence);
    tell(s, mutant, !comparison.gradients_equal(), findings, is_simpler, us);
  }

  // One mistake gives what these two give.
  static bool has_simpler(const Evidence& evidence) {
    const Replay replay = simulate;
    const auto found = explanations(evidence, Replayer(evidence, replay)).found;
    return std::any_of(found.begin(), found.end(), [](const Hypothesis& h) { return h.size() == 1; });
  }

  // Wrong backwards run as a mutant, a wrong sync as a program that has it. False where the ranks
  // cannot show the mutant.
  bool run_for_real(const Subject& s, const Hypothesis& mutant, DistributedRun& run) {
    RunRequest request;
    request.program = s.asked.program;
    for (Input& input : request.program.inputs)
      if (const auto mistake = sync_mistake_named(mutant[0].rule); mistake && input.name == mutant[0].step)
        if (!mutate_sync(input, *mistake)) return false;
    request.backend = "gloo";
    request.weights = backward_weights(s.asked.program, s.which.objective, true);
    std::string mutations;
    for (const RuleChoice& choice : of_backward(mutant))
      mutations += (mutations.empty() ? "" : "+") + choice.step + "=" + choice.rule;
    request.subject = mutations.empty() ? "reference" : "mutant:" + mutations;
    const auto done = workshop_->wait(workshop_->run(request, 30));
    if (!done) return false;
    DistributedRun real = std::get<DistributedRun>(done->result);
    if (real.error) {
      std::fprintf(stderr, "%s %s: %s\n", s.which.id.c_str(), mutant[0].rule.c_str(), real.error->message.c_str());
      return false;
    }
    is_missing_ = std::any_of(real.ranks.begin(), real.ranks.end(), [](const RankResult& rank) {
      return std::any_of(rank.gradients.begin(), rank.gradients.end(), [](const auto& g) { return !g; });
    });
    for (std::size_t r = 0; r < real.ranks.size(); ++r) run.ranks[r].gradients = std::move(real.ranks[r].gradients);
    return true;
  }

  void tell(const Subject& s, const Hypothesis& mutant, bool caught, const std::vector<Finding>& findings, bool is_simpler, long long us) const {
    const CollectiveCall* call = call_of(s.asked.program, mutant[0].step);
    std::string rule, wanted, seen;
    bool named = true;
    for (const RuleChoice& choice : mutant) {
      const std::string finding = expected(choice);
      rule += (rule.empty() ? "" : "+") + name_of(choice);
      wanted += (wanted.empty() ? "" : "+") + finding;
      named = named && std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
                return f.rule == finding && (is_told(s, f, choice) || f.step == choice.step || names_step(f, choice.step));
              });
    }
    for (const Finding& f : findings) seen += (seen.empty() ? "" : ",") + f.rule + (f.step.empty() ? "" : "@" + f.step);
    const bool first = !findings.empty() && findings[0].rule == expected(mutant[0]);
    std::printf("%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%lld\t%s\t%s@%s\n", rule.c_str(), wanted.c_str(),
                call ? std::string(traits(call->kind).name).c_str() : "sync",
                call && traits(call->kind).takes_op ? std::string(name_of(call->op)).c_str() : "", caught, named, first, is_simpler, us, seen.c_str(),
                s.which.scenario->file.c_str(), mutant[0].step.c_str());
    if (!options_.show) return;
    for (const Finding& f : findings) std::printf("  %s\n", f.text.c_str());
  }

  // "without" of "without:2", "sync twice" of "sync:twice:dp".
  static std::string name_of(const RuleChoice& choice) {
    if (!sync_mistake_named(choice.rule)) return choice.rule.substr(0, choice.rule.find(':'));
    return "sync " + choice.rule.substr(5, choice.rule.find(':', 5) - 5);
  }
  static std::string_view name_of(ReduceOp op) { return distgrad::name_of(op); }

  // Findings without a step: of an input's sync the very mistake must be told.
  static bool is_told(const Subject& s, const Finding& f, const RuleChoice& choice) {
    const auto mistake = sync_mistake_named(choice.rule);
    if (!mistake) return f.step.empty();
    for (const Input& input : s.asked.program.inputs)
      if (input.name == choice.step)
        return f.text.find(text_of(s.asked.program, input, *mistake, input.name)) != std::string::npos;
    return false;
  }

  // On real ranks a gradient that nothing leads to is None, unless a sync or another path makes it zeros.
  std::string expected(const RuleChoice& choice) const {
    return options_.ranks && choice.rule == "none" && is_missing_ ? "no-gradient" : finding_of(choice);
  }

  // Several steps that go by one rule are told in one finding: "(steps a and b)".
  static bool names_step(const Finding& f, const std::string& step) {
    const std::size_t open = f.text.find("(steps "), close = f.text.find(')', open);
    if (open == std::string::npos) return false;
    const std::string list = " " + f.text.substr(open + 7, close - open - 7) + " ";
    return list.find(" " + step + " ") != std::string::npos || list.find(" " + step + ",") != std::string::npos;
  }

  const Options& options_;
  std::mt19937 random_;
  std::optional<Workshop> workshop_;
  bool is_missing_ = false;  // some gradient of the last real run
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--pairs") options.pairs = true;
    else if (word == "--ranks") options.ranks = true;
    else if (word == "--show") options.show = true;
    else if (word == "--seconds" && i + 1 < argc) options.seconds = std::stod(argv[++i]);
    else if (word == "--seed" && i + 1 < argc) options.seed = static_cast<unsigned>(std::stoul(argv[++i]));
    else options.files.push_back(word);
  }
  return options;
}

}  // namespace
}  // namespace distgrad

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const distgrad::Options options = distgrad::parse(argc, argv);
  distgrad::Sweep(options).run();
}
