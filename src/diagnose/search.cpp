#include "diagnose/search.h"

#include <algorithm>
#include <cmath>

#include "diagnose/reach.h"
#include "gradients/closeness.h"

namespace distgrad {
namespace {

// Of pairs that fit, so many are told.
constexpr std::size_t kMostPairsTold = 4;
// Numbers other than 0 that must be there before two rules at once are believed.
constexpr int kLeastForAPair = 4;
// No rounding to a narrower dtype carries a gradient further.
constexpr double kLargestRounding = 1.0 / 16;

struct Trial {
  Hypothesis hypothesis;
  std::vector<GradientByRank> predicted;
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
        singles_(single_hypotheses(evidence.program())) {}

  Explanations run() {
    try_singles();
    if (out_.found.empty()) try_joint();
    if (out_.found.empty()) predict_the_rest();
    if (out_.found.empty() && shows_pairs()) try_sums_of_two();
    if (out_.found.empty() && shows_pairs()) try_pairs_in_use();
    std::sort(out_.bearing.begin(), out_.bearing.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });  // of one vector
    return std::move(out_);
  }

 private:
  // Whether all that is off can come from these steps. What is written over may be anybody's.
  bool bears_on_all(const Hypothesis& hypothesis) const {
    return std::all_of(off_.begin(), off_.end(), [&](std::size_t input) {
      return std::any_of(hypothesis.begin(), hypothesis.end(), [&](const RuleChoice& c) {
        return c.rule == "overwritten" || reach_.inputs_behind(c.step).contains(input);
      });
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

  // What cannot explain all alone may explain some of it.
  void predict_the_rest() {
    for (const Hypothesis& hypothesis : singles_)
      if (!bears_on_all(hypothesis)) predict(hypothesis);
  }

  bool predict(const Hypothesis& hypothesis) {
    auto predicted = replayer_.predicted(hypothesis);
    if (!predicted) return false;
    if (hypothesis[0].rule == "none") note_bearing(hypothesis[0].step, *predicted);
    trials_.push_back({hypothesis, std::move(*predicted)});
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
      if (!known && bears_on_all(hypothesis) && replayer_.reproduces(hypothesis))
        out_.found.push_back(std::move(hypothesis));
    }
  }

  // With enough rules and few numbers some pair always fits.
  bool shows_pairs() const {
    int numbers = 0;
    for (const ComparedPart& part : evidence_.parts())
      if (part.observed)
        for (const double v : part.observed->values()) numbers += v != 0 && std::isfinite(v);
    return numbers >= kLeastForAPair;
  }

  // Where neither collective lies behind the other, what two mistakes change adds up: no replay is
  // needed to see which two may be meant.
  void try_sums_of_two() {
    if (!replayer_.adjoint()) return;
    for (std::size_t a = 0; a < trials_.size(); ++a)
      for (std::size_t b = a + 1; b < trials_.size(); ++b) {
        if (trials_[a].hypothesis[0].step == trials_[b].hypothesis[0].step) continue;
        const auto both = sum_of_changes(trials_[a].predicted, trials_[b].predicted);
        if (replayer_.is_near(both)) try_pair(trials_[a].hypothesis[0], trials_[b].hypothesis[0]);
        if (is_enough(kMostPairs / 2)) return;
      }
  }

  // Where one lies behind the other only a replay tells; so only rules that are known to be in use.
  void try_pairs_in_use() {
    std::vector<RuleChoice> choices;
    for (const Trial& trial : trials_)
      if (is_in_use(trial.hypothesis[0].rule) && trial.hypothesis[0].rule != "none")
        choices.push_back(trial.hypothesis[0]);
    for (std::size_t a = 0; a < choices.size(); ++a)
      for (std::size_t b = a + 1; b < choices.size() && !is_enough(kMostPairs); ++b)
        if (choices[a].step != choices[b].step) try_pair(choices[a], choices[b]);
  }

  void try_pair(const RuleChoice& a, const RuleChoice& b) {
    Hypothesis hypothesis = {a, b};
    if (!bears_on_all(hypothesis)) return;
    ++pairs_;
    if (replayer_.reproduces(hypothesis)) out_.found.push_back(std::move(hypothesis));
  }

  bool is_enough(std::size_t most) const {
    return pairs_ >= most || out_.found.size() >= kMostPairsTold;
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
  std::vector<Trial> trials_;
  std::size_t pairs_ = 0;
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
