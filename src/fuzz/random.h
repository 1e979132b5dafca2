// Makes the fuzzer's random numbers: a counter through splitmix64's output function. The same seed
// gives the same program on every machine and with every standard library, which the standard's
// distributions do not promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace distgrad::fuzz {

class Random {
 public:
  // Starts the stream of program `index` of `seed`. Streams do not depend on each other.
  Random(std::uint64_t seed, std::uint64_t index) : start_(mixed(seed ^ mixed(index + kStep))) {}

  std::uint64_t bits() { return mixed(start_ + ++count_ * kStep); }
  // Returns 0 ≤ result < n. The remainder's bias is below 2^-50 for the small numbers drawn here.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::size_t>(high - low) + 1));
  }
  bool chance(int percent) { return static_cast<int>(below(100)) < percent; }

  template <class List>
  const auto& pick(const List& list) {
    return list[below(std::size(list))];
  }
  int pick(std::initializer_list<int> list) { return list.begin()[below(list.size())]; }

  template <class T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;

  // Computes Stafford's variant 13 of MurmurHash3's finaliser, as in splitmix64.
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  std::uint64_t start_;
  std::uint64_t count_ = 0;
};

}  // namespace distgrad::fuzz
