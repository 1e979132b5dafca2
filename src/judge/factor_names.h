// Says in words what a constant factor between two gradients is: a size in the run or its inverse,
// a small ratio, or the number itself.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// Names something in the run and its count: an axis, a group, the ranks, or the micro-batches that
// the user counted.
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
  std::string meaning;  // "4 = the number of ranks"; empty: no count fits

  // Returns "1/4 of the reference (4 = the number of ranks)" for `whole` "the reference".
  std::string of(std::string_view whole) const;
};

class FactorNames {
 public:
  // `narrow` says that the gradients are too coarse to tell 0.66 from 2/3. `shown` has nameless
  // factors by which other gradients of the run are wrong.
  FactorNames(std::vector<NamedCount> counts, bool narrow, std::vector<double> shown = {})
      : counts_(std::move(counts)), narrow_(narrow), shown_(std::move(shown)) {}

  // Names everything that fits `measured` within the relative `precision`. It names products and
  // squares only if nothing else fits.
  NamedFactor name(double measured, double precision) const;
  // Returns the one of the `shown` factors that fits, or nothing.
  std::optional<NamedFactor> shown(double measured, double precision) const;
  // Names the factor by its number.
  static NamedFactor unnamed(double measured);

 private:
  std::string sized(int size) const;
  std::string product_of(int size) const;

  std::vector<NamedCount> counts_;
  bool narrow_;
  std::vector<double> shown_;
};

}  // namespace distgrad
