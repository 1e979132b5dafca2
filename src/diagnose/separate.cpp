#include "diagnose/separate.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "diagnose/rewriting.h"
#include "diagnose/sync_mistakes.h"
#include "gradients/closeness.h"

namespace distgrad {
namespace {

constexpr std::size_t kMostTelling = 3;

class Replayed {
 public:
  Replayed(const Program& program, const Objective& objective, bool divides_replicated,
           const Replay& replay)
      : program_(program),
        replay_(replay),
        weights_(backward_weights(program, objective, divides_replicated)),
        divisors_(leftover_divisors(program, objective, divides_replicated)) {}

  std::optional<Gradients> held(const Hypothesis& hypothesis) const {
    SimulateRequest request;
    request.program = program_;
    try {
      request.rules = rewrite(request.program, of_backward(hypothesis));
    } catch (const std::invalid_argument&) {
      return std::nullopt;  // a step that this program lacks
    }
    request.weights = {weights_};
    request.leaves_by_rank = true;
    request.with_bounds = false;
    request.with_guards = false;
    const Simulation simulation = replay_(request);
    if (simulation.invalid || simulation.gradients.empty() || !simulation.undecided.empty() ||
        !simulation.forward_only.empty())
      return std::nullopt;
    return after_sync(hypothesis, simulation.gradients[0]);
  }

 private:
  std::optional<Gradients> after_sync(const Hypothesis& hypothesis,
                                      const std::vector<Gradient>& gradients) const {
    Gradients all;
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      const Input& input = program_.inputs[i];
      if (!input.requires_grad) continue;
      std::vector<SyncMistake> mistakes;
      for (const RuleChoice& choice : hypothesis)
        if (const auto mistake = sync_mistake_named(choice.rule);
            mistake && choice.step == input.name)
          mistakes.push_back(*mistake);
      const auto held = synchronised(program_, input, mistakes, gradients[all.size()].parts);
      if (!held) return std::nullopt;
      all.push_back(divided(*held, divisors_[i]));
    }
    return all;
  }

  const Program& program_;
  const Replay& replay_;
  std::vector<double> weights_, divisors_;
};

double value_at(const Gradients& gradients, const TellingElement& at) {
  const auto& array = gradients[at.input][at.rank];
  return array ? (*array)[at.element] : 0;
}

bool differ(double a, double b, double largest) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) != std::isnan(b);
  return std::abs(a - b) > kTellingDifference * largest;
}

double largest_of(const Gradients& gradients, std::size_t input) {
  double largest = 0;
  for (const auto& part : gradients[input])
    if (part) largest = std::max(largest, largest_magnitude(part->values()));
  return largest;
}

// Calls f(place, largest magnitude of the input in the truth) for every element.
template <class F>
void for_each_element(const Gradients& like, const F& f) {
  for (std::size_t i = 0; i < like.size(); ++i) {
    const double largest = largest_of(like, i);
    for (std::size_t r = 0; r < like[i].size(); ++r)
      for (std::int64_t e = 0; like[i][r] && e < like[i][r]->size(); ++e)
        f(TellingElement{i, r, e}, largest);
  }
}

bool are_apart(const Gradients& a, const Gradients& b, const Gradients& truth) {
  bool apart = false;
  for_each_element(truth, [&](const TellingElement& at, double largest) {
    apart = apart || differ(value_at(a, at), value_at(b, at), largest);
  });
  return apart;
}

// Pairs of hypotheses, by number, that no place told apart so far.
using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;

Pairs left_by(const Separation& s, const TellingElement& at, double largest, const Pairs& pairs) {
  Pairs left;
  for (const auto& [a, b] : pairs)
    if (!differ(value_at(s.held[a], at), value_at(s.held[b], at), largest)) left.push_back({a, b});
  return left;
}

// One after the other, the place that tells most of the rest apart.
std::vector<TellingElement> telling_elements(const Separation& s) {
  Pairs pairs;
  for (std::size_t a = 0; a < s.held.size(); ++a)
    for (std::size_t b = a + 1; b < s.held.size(); ++b)
      if (s.of[a] != s.of[b]) pairs.push_back({a, b});
  std::vector<TellingElement> telling;
  while (!pairs.empty() && telling.size() < kMostTelling) {
    std::optional<TellingElement> best;
    Pairs fewest = pairs;
    for_each_element(s.truth, [&](const TellingElement& at, double largest) {
      Pairs left = left_by(s, at, largest, pairs);
      if (left.size() >= fewest.size()) return;
      fewest = std::move(left);
      best = at;
    });
    if (!best) break;
    telling.push_back(*best);
    pairs = std::move(fewest);
  }
  return telling;
}

}  // namespace

std::optional<Separation> separation(const Program& program, const Objective& objective,
                                     bool divides_replicated,
                                     const std::vector<Hypothesis>& hypotheses,
                                     const Replay& replay) {
  const Replayed replayed(program, objective, divides_replicated, replay);
  auto truth = replayed.held({});
  if (!truth) return std::nullopt;
  Separation s;
  s.truth = std::move(*truth);
  for (const Hypothesis& hypothesis : hypotheses) {
    auto held = replayed.held(hypothesis);
    if (!held) return std::nullopt;
    s.held.push_back(std::move(*held));
  }
  for (std::size_t h = 0; h < s.held.size(); ++h) {
    std::size_t same = 0;
    while (same < h && are_apart(s.held[same], s.held[h], s.truth)) ++same;
    s.of.push_back(same);
    s.kinds += same == h;
  }
  s.telling = telling_elements(s);
  return s;
}

}  // namespace distgrad
