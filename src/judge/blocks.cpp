#include "judge/blocks.h"

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"

namespace distgrad {
namespace {

constexpr int kLargestDenominator = 64;

// Holds the numbers of one block for each of its cotangents, one after the other.
struct Samples {
  std::vector<double> seen, right, copied;  // copied: the cotangent; empty if its size differs
  double room = 0;
};

Samples samples(const Measurement& m, const std::vector<Joint>& values, const PieceOf& to,
                const PieceOf& from) {
  Samples all;
  const Elements& target = m.pieces.operands[to.rank][to.piece];
  const Elements& source = m.pieces.outputs[from.rank][from.piece];
  const bool fits = target.size() == source.size();
  for (std::size_t k = 0; k < m.probes.size(); ++k) {
    if (m.probes[k].rank != from.rank || m.probes[k].piece != from.piece) continue;
    for (const std::size_t e : target) {
      all.seen.push_back(values[k][to.rank][e]);
      all.right.push_back(m.right.values[k][to.rank][e]);
    }
    if (fits)
      for (const std::size_t e : source) all.copied.push_back(m.cotangents[k][from.rank][e]);
    all.room = std::max(all.room, resolution(m, k, to.rank));
  }
  return all;
}

// Returns the factors by which the right backward multiplies each element of a cotangent that
// counts for `to`, or an empty list if these are not one number for each element.
std::vector<double> derivative_of(const Measurement& m, const PieceOf& to,
                                  const std::vector<PieceOf>& sources) {
  std::vector<double> derivative;
  for (const PieceOf& from : sources) {
    const Samples s = samples(m, m.right.values, to, from);
    const std::size_t size = m.pieces.operands[to.rank][to.piece].size();
    const auto is_nothing = [&](double v) { return std::abs(v) <= s.room; };
    if (std::all_of(s.right.begin(), s.right.end(), is_nothing)) continue;
    if (s.copied.size() != s.right.size()) return {};
    std::vector<double> own(size, 0.0);
    for (std::size_t i = 0; i < s.right.size(); ++i)
      if (s.copied[i] != 0) own[i % size] = s.right[i] / s.copied[i];
    if (derivative.empty()) derivative = own;
    if (!difference(own, derivative, [&](std::size_t) { return s.room; }).equal) return {};
  }
  return derivative;
}

// Returns what the right backward of the target would make of this piece.
std::vector<double> as_if_due(const Samples& s, const std::vector<double>& derivative) {
  std::vector<double> image;
  if (!derivative.empty())
    for (std::size_t i = 0; i < s.copied.size(); ++i)
      image.push_back(derivative[i % derivative.size()] * s.copied[i]);
  return image;
}

// Keeps the numbers found so far, and returns a known one if a number differs by rounding alone.
class Numbers {
 public:
  double one_for(double number, double relative_error) {
    for (const double known : known_)
      if (std::abs(number - known) <= 2 * relative_error * std::abs(known)) return known;
    return known_.emplace_back(number);
  }

 private:
  std::vector<double> known_;
};

// Returns the number that makes `seen` out of `image`.
std::optional<double> multiple(const std::vector<double>& seen, const std::vector<double>& image,
                               double room, DType dtype, Numbers& numbers) {
  if (seen.size() != image.size() || image.empty()) return std::nullopt;
  std::size_t largest = 0;
  for (std::size_t i = 0; i < image.size(); ++i)
    if (std::isfinite(image[i]) && std::abs(image[i]) > std::abs(image[largest])) largest = i;
  if (!(std::abs(image[largest]) > room) || !std::isfinite(seen[largest])) return std::nullopt;
  const double error = room / std::abs(image[largest]) + 4 * unit_roundoff(dtype);
  const double factor = snapped(seen[largest] / image[largest], error);
  for (std::size_t i = 0; i < image.size(); ++i)
    if (!within(seen[i], factor * image[i], room * std::max(1.0, std::abs(factor))))
      return std::nullopt;
  return numbers.one_for(factor, error);
}

Blocks blocks_of(const Measurement& m, const std::vector<Joint>& values) {
  Blocks blocks;
  Numbers numbers;
  for (std::size_t r = 0; r < m.world_size(); ++r) {
    for (std::size_t p = 0; p < m.pieces.operands[r].size(); ++p)
      if (!m.pieces.operands[r][p].empty()) blocks.to.push_back({r, p});
    for (std::size_t p = 0; p < m.pieces.outputs[r].size(); ++p)
      if (!m.pieces.outputs[r][p].empty()) blocks.from.push_back({r, p});
  }
  for (const PieceOf& to : blocks.to) {
    std::vector<Block>& row = blocks.at.emplace_back();
    const auto& derivative = blocks.derivatives.emplace_back(derivative_of(m, to, blocks.from));
    for (const PieceOf& from : blocks.from) {
      const Samples s = samples(m, values, to, from);
      Block& block = row.emplace_back();
      block.is_zero = std::all_of(s.seen.begin(), s.seen.end(),
                                  [&](double v) { return std::abs(v) <= s.room; });
      if (block.is_zero) continue;
      block.of_copy = multiple(s.seen, s.copied, s.room, m.program->dtype, numbers);
      const bool is_due = std::any_of(s.right.begin(), s.right.end(),
                                      [&](double v) { return std::abs(v) > s.room; });
      block.of_right = multiple(s.seen, is_due ? s.right : as_if_due(s, derivative), s.room,
                                m.program->dtype, numbers);
    }
  }
  return blocks;
}

}  // namespace

bool Blocks::is_described() const {
  for (const auto& row : at)
    for (const Block& block : row)
      if (!block.is_zero && !block.of_copy && !block.of_right) return false;
  return true;
}

Blocks blocks_of_measured(const Measurement& m) { return blocks_of(m, m.measured.values); }
Blocks blocks_of_right(const Measurement& m) { return blocks_of(m, m.right.values); }

std::optional<std::vector<std::vector<double>>> coefficients(const Blocks& measured,
                                                             const Blocks& right,
                                                             std::size_t world_size) {
  std::vector<std::vector<std::optional<double>>> found(
      world_size, std::vector<std::optional<double>>(world_size));
  for (std::size_t t = 0; t < measured.to.size(); ++t)
    for (std::size_t f = 0; f < measured.from.size(); ++f) {
      const Block &seen = measured.at[t][f], &wanted = right.at[t][f];
      if (wanted.is_zero) {
        if (!seen.is_zero) return std::nullopt;
        continue;
      }
      if (!seen.is_zero && !seen.of_right) return std::nullopt;
      const double number = seen.is_zero ? 0 : *seen.of_right;
      std::optional<double>& place = found[measured.to[t].rank][measured.from[f].rank];
      if (place && *place != number) return std::nullopt;
      place = number;
    }
  std::vector<std::vector<double>> numbers(world_size, std::vector<double>(world_size, 0.0));
  for (std::size_t r = 0; r < world_size; ++r)
    for (std::size_t k = 0; k < world_size; ++k) numbers[r][k] = found[r][k].value_or(0);
  return numbers;
}

double snapped(double number, double relative_error) {
  for (int denominator = 1; denominator <= kLargestDenominator; ++denominator) {
    const double nearest = std::nearbyint(number * denominator) / denominator;
    if (nearest != 0 &&
        std::abs(number - nearest) <= std::max(relative_error, 0x1p-50) * std::abs(nearest))
      return nearest;
  }
  return number;
}

}  // namespace distgrad
