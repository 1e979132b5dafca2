// What a constant factor between two gradients is, in words: a size that there is in the run, or
// its inverse; a small ratio; the number itself.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// Something that there is in the run, and how often: an axis, a group, the ranks, the micro-batches
// that the user counted.
struct NamedCount {
  enum class Kind { kAxis, kOther };  // text: "the size of dp or tp", "the number of ranks"
  std::string name;
  int count = 1;
  Kind kind = Kind::kOther;
};

struct NamedFactor {
  double value = 1;
  bool known = false;  // a size, an inverse of one, a small ratio, a loss scale, -1
  bool is_size = false;
  bool is_loss_scale = false;
  std::string amount;   // "1/4 of", "3 times", "the negative of"
  std::string meaning;  // "4 = the number of ranks"; empty: nothing is that

  // `whole`: "the reference". "1/4 of the reference (4 = the number of ranks)"
  std::string of(std::string_view whole) const;
};

class FactorNames {
 public:
  // `narrow`: the gradients are too coarse to tell 0.66 from 2/3 by more than a percent or two.
  // `shown`: factors that have no name and that other gradients of the run are wrong by.
  FactorNames(std::vector<NamedCount> counts, bool narrow, std::vector<double> shown = {})
      : counts_(std::move(counts)), narrow_(narrow), shown_(std::move(shown)) {}

  // `precision`: how far, relatively, the measured factor may lie off. Everything that fits is
  // named, and nothing that there is not; of products and squares only where nothing else fits.
  NamedFactor name(double measured, double precision) const;
  // The one of those that others showed; nothing where it is none of them.
  std::optional<NamedFactor> shown(double measured, double precision) const;
  // The number itself.
  static NamedFactor unnamed(double measured);

 private:
  std::string sized(int size) const;
  std::string product_of(int size) const;

  std::vector<NamedCount> counts_;
  bool narrow_;
  std::vector<double> shown_;
};

}  // namespace distgrad
