#include "diagnose/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "diagnose/reach.h"
#include "gradients/closeness.h"

namespace distgrad {
namespace {

// Of explanations that need two, so many are told.
constexpr std::size_t kMostTold = 8;
// Replays that are spent on rivals of an explanation by one rule on several collectives.
constexpr std::size_t kMostRivals = 64;
// Numbers other than 0 that must be there before two rules at once are believed.
constexpr std::size_t kLeastForAPair = 4;
// No rounding to a narrower dtype carries a gradient further.
constexpr double kLargestRounding = 1.0 / 16;

using Gradients = std::vector<GradientByRank>;  // by input

struct Trial {
  Hypothesis hypothesis;
  std::vector<GradientByRank> after_backward, predicted;
  std::vector<bool> fits;  // by input, where pairs are looked for
};

std::string_view finding_of(const RuleChoice& choice) {
  for (const BackwardRuleRow& row : backward_rules())
    if (row.name == choice.rule) return row.finding;
  return "";
}

// The inputs of which a rank's gradient would be another with the step cut off.
std::vector<std::size_t> borne_on(const std::vector<GradientByRank>& cut,
                                  const std::vector<GradientByRank>& adjoint) {
  std::vector<std::size_t> inputs;
  for (std::size_t i = 0; i < cut.size(); ++i)
    for (std::size_t r = 0; r < cut[i].size(); ++r) {
      if (!cut[i][r] || !adjoint[i][r]) continue;
      if (difference(cut[i][r]->values(), adjoint[i][r]->values(), no_slack).equal) continue;
      inputs.push_back(i);
      break;
    }
  return inputs;
}

// The search, from the likely to the far-fetched.
class Search {
 public:
  Search(const Evidence& evidence, const Replayer& replayer)
      : evidence_(evidence),
        replayer_(replayer),
        reach_(evidence.program()),
        off_(replayer.inputs_off()),
        singles_(single_hypotheses(evidence.program())),
        syncs_(sync_hypotheses(evidence.program())) {}

  Explanations run() {
    try_singles();
    if (out_.found.empty()) try_joint();
    try_syncs();
    if (!is_simple()) {
      // What goes by one rule everywhere may as well be two rules on two collectives.
      const bool is_joint = !out_.found.empty();
      predict_the_rest();
      if (shows_pairs()) try_pairs(is_joint ? kMostRivals : kMostReplays);
    }
    std::sort(out_.bearing.begin(), out_.bearing.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });  // of one vector
    return std::move(out_);
  }

 private:
  // Whether all that is off can come from these steps. What is written over may be anybody's.
  bool bears_on_all(const Hypothesis& hypothesis) const {
    return std::all_of(off_.begin(), off_.end(), [&](std::size_t input) {
      return std::any_of(hypothesis.begin(), hypothesis.end(),
                         [&](const RuleChoice& c) { return bears_on(c, input); });
    });
  }

  bool bears_on(const RuleChoice& c, std::size_t input) const {
    return c.rule == "overwritten" || c.step == evidence_.inputs()[input]->name ||
           reach_.inputs_behind(c.step).contains(input);
  }

  // One thing is wrong: a collective, or what comes after backward.
  bool is_simple() const {
    return std::any_of(out_.found.begin(), out_.found.end(), [](const Hypothesis& h) {
      return h.size() == 1 || of_backward(h).empty();
    });
  }

  void try_singles() {
    const bool near =
        replayer_.adjoint() && replayer_.relative_error(*replayer_.adjoint()) <= kLargestRounding;
    if (!near)
      std::erase_if(singles_, [](const Hypothesis& h) { return finding_of(h[0]) == "precision"; });
    for (const Hypothesis& hypothesis : singles_)
      if (bears_on_all(hypothesis) && predict(hypothesis) &&
          replayer_.explains(hypothesis, trials_.back().predicted))
        out_.found.push_back(hypothesis);
  }

  // What is done with the shares after backward, of one input or of all alike.
  void try_syncs() {
    for (const Hypothesis& hypothesis : syncs_) try_sync(hypothesis);
    for (const Hypothesis& hypothesis : joint_sync_hypotheses(evidence_.program()))
      if (std::none_of(hypothesis.begin(), hypothesis.end(), [&](const RuleChoice& choice) {
            return is_part_of_some({choice});
          }))
        try_sync(hypothesis);
  }

  bool is_part_of_some(const Hypothesis& part) const {
    return std::any_of(out_.found.begin(), out_.found.end(),
                       [&](const Hypothesis& h) { return is_part_of(part, h); });
  }

  void try_sync(const Hypothesis& hypothesis) {
    if (bears_on_all(hypothesis) && replayer_.reproduces(hypothesis))
      out_.found.push_back(hypothesis);
  }

  // What cannot explain all alone may explain some of it.
  void predict_the_rest() {
    for (const Hypothesis& hypothesis : singles_)
      if (!bears_on_all(hypothesis)) predict(hypothesis);
  }

  bool predict(const Hypothesis& hypothesis) {
    ++replays_;
    auto shares = replayer_.after_backward(hypothesis);
    auto predicted = shares ? replayer_.after_sync(*shares, hypothesis) : std::nullopt;
    if (!predicted) return false;
    if (hypothesis[0].rule == "none") note_bearing(hypothesis[0].step, *predicted);
    trials_.push_back({hypothesis, std::move(*shares), std::move(*predicted), {}});
    return true;
  }

  void note_bearing(const std::string& name, const std::vector<GradientByRank>& cut) {
    if (!replayer_.adjoint()) return;
    for (const Step* step : evidence_.collectives())
      if (step->name == name) out_.bearing.emplace_back(step, borne_on(cut, *replayer_.adjoint()));
  }

  void try_joint() {
    std::vector<Hypothesis> joint =
        joint_hypotheses(evidence_.program(), evidence_.which().subject);
    std::stable_sort(joint.begin(), joint.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.size() < b.size(); });
    for (Hypothesis& hypothesis : joint) {
      const bool known =
          std::any_of(out_.found.begin(), out_.found.end(),
                      [&](const Hypothesis& smaller) { return is_part_of(smaller, hypothesis); });
      if (known || !bears_on_all(hypothesis)) continue;
      ++replays_;
      if (replayer_.reproduces(hypothesis)) out_.found.push_back(std::move(hypothesis));
    }
  }

  // With enough rules and few numbers some pair always fits. What ranks hold alike counts once.
  bool shows_pairs() const {
    std::set<double> numbers;
    for (const ComparedPart& part : evidence_.parts())
      if (part.observed)
        for (const double v : part.observed->values())
          if (v != 0 && std::isfinite(v)) numbers.insert(std::abs(v));
    return numbers.size() >= kLeastForAPair;
  }

  // --- Two at once ---

  struct Pair {
    const Trial* a;
    const Trial* b;
  };

  void try_pairs(std::size_t most_replays) {
    note_what_fits();
    most_replays_ = std::min(kMostReplays, replays_ + most_replays);
    try_with_sync();
    std::vector<Pair> pairs = pairs_in_question();
    const auto rare = std::stable_partition(pairs.begin(), pairs.end(), [](const Pair& p) {
      return is_in_use(p.a->hypothesis[0].rule) && is_in_use(p.b->hypothesis[0].rule);
    });
    std::vector<Pair> rest = try_scalings(try_sums({pairs.begin(), rare}));
    for (const Pair& pair : rest) try_pair(pair);
    rest = try_sums({rare, pairs.end()});
    if (!out_.found.empty()) return;
    for (const Pair& pair : try_scalings(rest)) try_pair(pair);
  }

  // Where neither collective lies behind the other, what two mistakes change adds up: no replay is
  // needed to see which two may be meant. Where one does, that holds at times, and else only a
  // replay tells: those pairs are given back.
  std::vector<Pair> try_sums(const std::vector<Pair>& pairs) {
    std::vector<Pair> others;
    for (const Pair& pair : pairs) {
      if (is_near_sum(pair)) {
        try_pair(pair);
      } else if (!cuts(pair)) {
        others.push_back(pair);
      }
    }
    return others;
  }

  // Behind a cut nothing shows.
  static bool cuts(const Pair& pair) {
    return pair.a->hypothesis[0].rule == "none" || pair.b->hypothesis[0].rule == "none";
  }

  // By trial and input, whether that input's gradients are explained so far.
  void note_what_fits() {
    for (Trial& trial : trials_)
      for (std::size_t i = 0; i < trial.predicted.size(); ++i)
        trial.fits.push_back(replayer_.is_near(trial.predicted, i));
  }

  // What lies behind one of the two alone, that one must explain, whatever the other does.
  bool may_fit(const Trial& a, const Trial& b) const {
    for (std::size_t i = 0; i < a.fits.size(); ++i) {
      const bool by_a = bears_on(a.hypothesis[0], i), by_b = bears_on(b.hypothesis[0], i);
      if (by_a && by_b) continue;
      if (by_a ? !a.fits[i] : !b.fits[i]) return false;
    }
    return true;
  }

  std::vector<Pair> pairs_in_question() const {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < trials_.size(); ++a)
      for (std::size_t b = a + 1; b < trials_.size(); ++b) {
        const RuleChoice &first = trials_[a].hypothesis[0], &second = trials_[b].hypothesis[0];
        if (first.step != second.step && may_fit(trials_[a], trials_[b])) pairs.push_back({&trials_[a], &trials_[b]});
      }
    return pairs;
  }

  // Where one of the two does nothing but multiply the adjoint by a number, what the other gives with
  // that collective cut off, and without, tells what both give: one replay for all such numbers. The
  // other pairs are given back.
  std::vector<Pair> try_scalings(const std::vector<Pair>& pairs) {
    std::vector<Pair> others;
    for (const Pair& pair : pairs) {
      const bool scales_a = factor_of(*pair.a).has_value(), scales_b = factor_of(*pair.b).has_value();
      if ((!scales_a && !scales_b) || !is_linear(*pair.a) || !is_linear(*pair.b)) {
        others.push_back(pair);
        continue;
      }
      if (replays_ >= most_replays_ || out_.found.size() >= kMostTold) return {};
      const auto both = scales_a ? scaled(*pair.a, *pair.b) : scaled(*pair.b, *pair.a);
      if (both && replayer_.is_near(*both)) try_pair(pair);
    }
    return others;
  }

  // What the other gives where the scaling one is there as well.
  std::optional<Gradients> scaled(const Trial& scaling, const Trial& other) {
    const double factor = *factor_of(scaling);
    const std::string& step = scaling.hypothesis[0].step;
    const auto mu = factor_of(other);
    if (!mu) {
      const Gradients* without = cut({{step, "none"}, other.hypothesis[0]});
      return without ? std::optional(between(*without, other.predicted, factor)) : std::nullopt;
    }
    const std::string& other_step = other.hypothesis[0].step;
    const Trial *cut_here = trial_of(step, "none"), *cut_there = trial_of(other_step, "none");
    const bool is_ordered = step < other_step;  // asked for once
    const Gradients* neither = cut(is_ordered ? Hypothesis{{step, "none"}, {other_step, "none"}}
                                              : Hypothesis{{other_step, "none"}, {step, "none"}});
    if (!cut_here || !cut_there || !neither) return std::nullopt;
    const Gradients without = between(*neither, cut_here->predicted, *mu);
    return between(without, other.predicted, factor);
  }

  // The replay of a hypothesis that cuts something off; null where it fails.
  const Gradients* cut(const Hypothesis& hypothesis) {
    std::string key;
    for (const RuleChoice& choice : hypothesis) key += choice.step + "=" + choice.rule + ";";
    const auto [entry, is_new] = cuts_.try_emplace(std::move(key));
    if (is_new) {
      ++replays_;
      entry->second = replayer_.predicted(hypothesis);
    }
    return entry->second ? &*entry->second : nullptr;
  }

  // none + factor (all - none).
  static Gradients between(const Gradients& none, const Gradients& all, double factor) {
    Gradients result = all;
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t r = 0; r < all[i].size(); ++r) {
        if (!all[i][r]) continue;
        const auto from = none[i][r]->values(), to = all[i][r]->values();
        std::vector<double> values(to.size());
        for (std::size_t e = 0; e < values.size(); ++e)
          values[e] = from[e] + factor * (to[e] - from[e]);
        result[i][r] = Array(all[i][r]->shape(), std::move(values));
      }
    return result;
  }

  const Trial* trial_of(const std::string& step, std::string_view rule) const {
    for (const Trial& trial : trials_)
      if (trial.hypothesis[0].step == step && trial.hypothesis[0].rule == rule) return &trial;
    return nullptr;
  }

  const CollectiveCall& call_of(const Trial& trial) const {
    for (const Step* step : evidence_.collectives())
      if (step->name == trial.hypothesis[0].step) return *step->collective();
    throw std::logic_error("a hypothesis on no collective");
  }

  std::optional<double> factor_of(const Trial& trial) const {
    return scaling_factor(trial.hypothesis[0].rule, call_of(trial), evidence_.program());
  }

  // In the cotangents: so that what is scaled before it comes out scaled.
  bool is_linear(const Trial& trial) const {
    const std::string& rule = trial.hypothesis[0].rule;
    if (rule == "same_op") return factor_of(trial).has_value();
    return rule != "overwritten" && finding_of(trial.hypothesis[0]) != "precision";
  }

  bool is_near_sum(const Pair& pair) const {
    return replayer_.adjoint() &&
           replayer_.is_near(sum_of_changes(pair.a->predicted, pair.b->predicted));
  }

  void try_pair(const Pair& pair) {
    if (replays_ >= most_replays_ || out_.found.size() >= kMostTold) return;
    Hypothesis hypothesis = {pair.a->hypothesis[0], pair.b->hypothesis[0]};
    const bool is_known = std::any_of(out_.found.begin(), out_.found.end(), [&](const Hypothesis& h) {
      return h.size() == 2 && is_part_of(h, hypothesis);
    });
    if (is_known) return;
    ++replays_;
    if (replayer_.reproduces(hypothesis)) out_.found.push_back(std::move(hypothesis));
  }

  // A wrong backward, and an input that is wrongly reduced besides: arithmetic.
  void try_with_sync() {
    for (const Trial& trial : trials_)
      for (const Hypothesis& sync : syncs_) {
        if (out_.found.size() >= kMostTold) return;
        const Hypothesis both = {trial.hypothesis[0], sync[0]};
        if (bears_on_all(both) &&
            replayer_.explains(both, replayer_.after_sync(trial.after_backward, both)))
          out_.found.push_back(both);
      }
  }

  std::vector<GradientByRank> sum_of_changes(const std::vector<GradientByRank>& a,
                                             const std::vector<GradientByRank>& b) const {
    std::vector<GradientByRank> sum = a;
    for (std::size_t i = 0; i < sum.size(); ++i)
      for (std::size_t r = 0; r < sum[i].size(); ++r) {
        if (!sum[i][r]) continue;
        const auto first = a[i][r]->values(), second = b[i][r]->values();
        const auto plain = (*replayer_.adjoint())[i][r]->values();
        std::vector<double> values(first.size());
        for (std::size_t e = 0; e < values.size(); ++e) values[e] = first[e] + second[e] - plain[e];
        sum[i][r] = Array(sum[i][r]->shape(), std::move(values));
      }
    return sum;
  }

  const Evidence& evidence_;
  const Replayer& replayer_;
  const Reach reach_;
  const std::vector<std::size_t> off_;  // inputs that no rounding explains
  std::vector<Hypothesis> singles_;
  const std::vector<Hypothesis> syncs_;
  std::vector<Trial> trials_;
  std::map<std::string, std::optional<Gradients>> cuts_;  // by hypothesis
  std::size_t replays_ = 0, most_replays_ = kMostReplays;
  Explanations out_;
};

}  // namespace

Explanations explanations(const Evidence& evidence, const Replayer& replayer) {
  Explanations all = Search(evidence, replayer).run();
  // What the subject is known to do is the likelier of explanations that look the same.
  if (is_rule_set(evidence.which().subject)) {
    const Hypothesis own = library_hypothesis(evidence.collectives(), evidence.which().subject);
    std::stable_partition(all.found.begin(), all.found.end(),
                          [&](const Hypothesis& h) { return is_part_of(h, own); });
  }
  return all;
}

}  // namespace distgrad
