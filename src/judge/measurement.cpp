#include "judge/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "judge/closeness.h"

namespace distgrad {
namespace {

constexpr std::size_t kFewUnits = 96;     // enough for a picture
constexpr std::size_t kMostUnits = 1024;  // if nothing coarser describes the backward
constexpr std::size_t kMostProbes = 256;
constexpr std::size_t kMostNumbers = std::size_t{1} << 22;  // that one rank gets or sends

std::size_t size_of(const Shape& shape) { return static_cast<std::size_t>(element_count(shape)); }

Joint nothing(const CallOnRanks& seen) {
  Joint joint;
  for (const Shape& shape : seen.outputs) joint.emplace_back(size_of(shape), 0.0);
  return joint;
}

// Draws nonzero integers: of few bits, so that their sums are exact in every dtype but the
// narrowest, or of as many bits as the dtype has, which no narrower one keeps.
class DTypeNumbers {
 public:
  explicit DTypeNumbers(DType dtype) : bits_(traits(dtype).significand_bits) {}

  double few() { return signed_number(1, 9); }
  double wide() {
    return std::ldexp(
        signed_number(std::int64_t{1} << (bits_ - 2), (std::int64_t{1} << (bits_ - 1)) - 1) * 2 + 1,
        1 - bits_);
  }

 private:
  double signed_number(std::int64_t low, std::int64_t high) {
    const auto size = static_cast<double>(
        low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1)));
    return random_() % 2 ? size : -size;
  }

  std::mt19937_64 random_{20};  // the same in every run
  int bits_;
};

template <class Make>
Joint everywhere(const CallOnRanks& seen, const Make& make) {
  Joint joint = nothing(seen);
  for (auto& values : joint)
    for (double& v : values) v = make();
  return joint;
}

Joint sum_of(const std::vector<Joint>& all, std::size_t count) {
  Joint sum = all[0];
  for (std::size_t k = 1; k < count; ++k)
    for (std::size_t r = 0; r < sum.size(); ++r)
      for (std::size_t e = 0; e < sum[r].size(); ++e) sum[r][e] += all[k][r][e];
  return sum;
}

Joint times(double factor, Joint joint) {
  for (auto& values : joint)
    for (double& v : values) v *= factor;
  return joint;
}

void add_units(Measurement& m) {
  for (std::size_t r = 0; r < m.world_size(); ++r)
    for (std::size_t p = 0; p < m.pieces.outputs[r].size(); ++p)
      for (const std::size_t e : m.pieces.outputs[r][p]) {
        m.probes.push_back({r, p, true, e});
        m.cotangents.push_back(nothing(*m.seen));
        m.cotangents.back()[r][e] = 1;
      }
  m.is_basis = true;
}

void add_pieces(Measurement& m, DTypeNumbers& numbers) {
  for (std::size_t r = 0; r < m.world_size(); ++r)
    for (std::size_t p = 0; p < m.pieces.outputs[r].size(); ++p) {
      m.probes.push_back({r, p, false, 0});
      m.cotangents.push_back(nothing(*m.seen));
      for (const std::size_t e : m.pieces.outputs[r][p]) m.cotangents.back()[r][e] = numbers.few();
    }
}

// Names the joint cotangents, which follow the columns.
enum JointCotangent : std::size_t { kTotal, kWide, kLarge, kSmall, kAgain, kJointCotangents };

// Large and small numbers show a backward that clips, or drops what is small. Every dtype holds the
// answers to them.
void add_joint(Measurement& m, DTypeNumbers& numbers) {
  constexpr double kSizes[] = {1, 0x1p7, 0x1p-13};
  m.cotangents.push_back(sum_of(m.cotangents, m.probes.size()));
  for (const double size : kSizes)
    m.cotangents.push_back(times(size, everywhere(*m.seen, [&] { return numbers.wide(); })));
  m.cotangents.push_back(m.cotangents[m.first_joint() + kTotal]);
  m.random_cotangents = kJointCotangents - 1;  // the repeated one does not count
}

double resolution_of(const Measurement& m, std::size_t cotangent, std::size_t rank) {
  constexpr double kRoundings = 16;
  const std::vector<double>& right = m.right.values[cotangent][rank];
  const double scale =
      std::max({largest_magnitude(right), largest_magnitude(m.measured.values[cotangent][rank]),
                largest_magnitude(m.cotangents[cotangent][rank])});
  double bound = 0;
  for (const double b : m.right.bounds[cotangent][rank])
    if (std::isfinite(b)) bound = std::max(bound, b);
  return 2 * bound + kRoundings * unit_roundoff(m.program->dtype) * scale;
}

// Returns true if two responses are the same but for rounding. NaN is no answer and is ignored.
bool is_same(const Measurement& m, const Joint& a, const Joint& b, std::size_t cotangent) {
  for (std::size_t r = 0; r < a.size(); ++r) {
    const double room = 2 * resolution(m, cotangent, r);
    for (std::size_t e = 0; e < a[r].size(); ++e)
      if (!std::isnan(a[r][e]) && !std::isnan(b[r][e]) && !within(a[r][e], b[r][e], room))
        return false;
  }
  return true;
}

std::string rank_that_differs(const Measurement& m, const Joint& seen, const Joint& wanted,
                              std::size_t cotangent) {
  for (std::size_t r = 0; r < seen.size(); ++r) {
    const double room = resolution(m, cotangent, r);
    for (std::size_t e = 0; e < seen[r].size(); ++e)
      if (!within(seen[r][e], wanted[r][e], room))
        return fmt::format("{:.6g} where it should be {:.6g} (rank {}, element {})", seen[r][e],
                           wanted[r][e], r, e);
  }
  return "";
}

// Finds the smallest example that shows that a backward is not additive: zeros, or a multiple.
std::string shown_by_smaller_ones(Machine& machine, const Measurement& m) {
  constexpr double kFactor = -3;
  const std::size_t total = m.first_joint() + kTotal;
  const auto answers = measured_responses(machine, *m.program, *m.seen,
                                          {nothing(*m.seen), times(kFactor, m.cotangents[total])});
  const Joint sum = sum_of(m.measured.values, m.probes.size());
  if (answers) {
    const Joint zeros = times(0, sum), multiple = times(kFactor, m.measured.values[total]);
    if (!is_same(m, answers->values[0], zeros, total))
      return "a cotangent of zeros is answered with " +
             rank_that_differs(m, answers->values[0], zeros, total);
    if (!is_same(m, answers->values[1], multiple, total))
      return "a cotangent times -3 is answered with " +
             rank_that_differs(m, answers->values[1], multiple, total);
  }
  return "the sum of cotangents is answered with " +
         rank_that_differs(m, m.measured.values[total], sum, total);
}

void note_what_joint_ones_show(Machine& machine, Measurement& m) {
  const std::size_t total = m.first_joint() + kTotal, again = m.first_joint() + kAgain;
  const std::vector<Joint>& values = m.measured.values;
  using Kind = Measurement::Kind;
  if (!is_same(m, values[again], values[total], total)) {
    const auto second = measured_responses(machine, *m.program, *m.seen, m.cotangents);
    // The first is left out, since what came before it is unknown.
    const bool is_alike = second && std::equal(second->values.begin() + 1, second->values.end(),
                                               values.begin() + 1, values.end());
    m.kind = is_alike ? Kind::kStateful : Kind::kNotRepeatable;
    m.shown = "one cotangent, given twice, is answered with " +
              rank_that_differs(m, values[again], values[total], total) +
              (is_alike ? ", by what came before it" : "");
  } else if (!is_same(m, values[total], sum_of(values, m.probes.size()), total)) {
    m.kind = Kind::kNotLinear;
    m.shown = shown_by_smaller_ones(machine, m);
  }
}

std::size_t pieces_in(const std::vector<Pieces>& by_rank) {
  std::size_t count = 0;
  for (const Pieces& pieces : by_rank) count += pieces.size();
  return count;
}

// Makes a rank's output one piece. With many ranks there are more pieces than can be tried.
void join_pieces(Pieces& pieces) {
  Elements all;
  for (const Elements& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  std::sort(all.begin(), all.end());
  pieces = {std::move(all)};
}

Measurement begun(const Program& program, const CallOnRanks& seen) {
  Measurement m;
  m.program = &program;
  m.seen = &seen;
  m.partition = program.partition_of(seen.call().group);
  m.pieces = pieces_of(program, seen);
  if (pieces_in(m.pieces.outputs) > kMostProbes)
    for (Pieces& pieces : m.pieces.outputs) join_pieces(pieces);
  return m;
}

std::optional<Measurement> finished(Machine& machine, Measurement m, DTypeNumbers& numbers) {
  if (m.probes.empty()) return std::nullopt;
  add_joint(m, numbers);
  auto answer = measured_responses(machine, *m.program, *m.seen, m.cotangents);
  auto right =
      right_responses(machine, *m.program, *m.seen, m.call(), m.program->groups, m.cotangents);
  if (!answer || !right) return std::nullopt;
  m.measured = std::move(*answer);
  m.right = std::move(*right);
  for (std::size_t k = 0; k < m.cotangents.size(); ++k) {
    std::vector<double>& of_ranks = m.resolutions.emplace_back();
    for (std::size_t r = 0; r < m.world_size(); ++r) of_ranks.push_back(resolution_of(m, k, r));
  }
  note_what_joint_ones_show(machine, m);
  return m;
}

std::size_t elements_of_outputs(const CallOnRanks& seen) {
  std::size_t count = 0;
  for (const Shape& shape : seen.outputs) count += size_of(shape);
  return count;
}

std::size_t largest_tensor(const CallOnRanks& seen) {
  std::size_t most = 1;
  for (const Shape& shape : seen.outputs) most = std::max(most, size_of(shape));
  for (const Array& operand : seen.operands) most = std::max(most, size_of(operand.shape()));
  return most;
}

}  // namespace

double resolution(const Measurement& m, std::size_t cotangent, std::size_t rank) {
  return m.resolutions[cotangent][rank];
}

bool is_right(const Measurement& m, std::size_t cotangent, std::size_t rank) {
  const double room = resolution(m, cotangent, rank);
  return difference(m.measured.values[cotangent][rank], m.right.values[cotangent][rank],
                    [&](std::size_t) { return room; })
      .equal;
}

bool is_right(const Measurement& m) {
  for (std::size_t k = 0; k < m.cotangents.size(); ++k)
    for (std::size_t r = 0; r < m.world_size(); ++r)
      if (!is_right(m, k, r)) return false;
  return true;
}

std::optional<Measurement> measured(Machine& machine, const Program& program,
                                    const CallOnRanks& seen) {
  Measurement m = begun(program, seen);
  const std::size_t pieces = pieces_in(m.pieces.outputs);
  if (pieces > kMostProbes || (pieces + kJointCotangents) * largest_tensor(seen) > kMostNumbers)
    return std::nullopt;
  DTypeNumbers numbers(program.dtype);
  add_pieces(m, numbers);
  return finished(machine, std::move(m), numbers);
}

std::optional<Measurement> measured_by_element(Machine& machine, const Program& program,
                                               const CallOnRanks& seen) {
  const std::size_t units = elements_of_outputs(seen);
  if (units > kMostUnits || units * largest_tensor(seen) > kMostNumbers) return std::nullopt;
  Measurement m = begun(program, seen);
  DTypeNumbers numbers(program.dtype);
  add_units(m);
  return finished(machine, std::move(m), numbers);
}

std::vector<Joint> units_of(const CallOnRanks& seen) {
  std::vector<Joint> units;
  if (elements_of_outputs(seen) > kFewUnits) return units;
  for (std::size_t r = 0; r < seen.outputs.size(); ++r)
    for (std::size_t e = 0; e < size_of(seen.outputs[r]); ++e) {
      units.push_back(nothing(seen));
      units.back()[r][e] = 1;
    }
  return units;
}

std::string shown_by(const Measurement& m) {
  return fmt::format("{} {} cotangents and {} random ones",
                     m.is_basis ? "a basis of" : "each piece by itself,", m.probes.size(),
                     m.random_cotangents);
}

}  // namespace distgrad
