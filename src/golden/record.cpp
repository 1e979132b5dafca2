#include "golden/record.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/sha256.h"
#include "golden/number.h"
#include "judge/assemble.h"

namespace distgrad::golden {
namespace {

constexpr std::size_t kFirst = 8;

Array rounded_up(const Array& bounds) {
  std::vector<double> values(bounds.values().begin(), bounds.values().end());
  for (double& value : values) value = golden::rounded_up(value);
  return Array(bounds.shape(), std::move(values));
}

Array zeros(const Shape& shape) {
  return Array(shape, std::vector<double>(static_cast<std::size_t>(element_count(shape)), 0.0));
}

const Gradient* named(const std::vector<Gradient>& gradients, const std::string& input) {
  for (const Gradient& g : gradients)
    if (g.input == input) return &g;
  return nullptr;
}

GradientRecord gradient_record(const Input& input, const Gradient& truth, const Gradient* bounds) {
  GradientRecord g;
  g.input = input.name;
  g.layout = layout_text(input);
  std::int64_t elements = 0;
  for (std::size_t p = 0; p < truth.parts.size(); ++p) {
    const auto& part = truth.parts[p];
    g.parts.push_back(part ? *part : zeros({}));
    const bool bounded = bounds && p < bounds->parts.size() && bounds->parts[p];
    g.bounds.push_back(bounded ? rounded_up(*bounds->parts[p]) : zeros(g.parts.back().shape()));
    elements += g.parts.back().size();
  }
  if (elements <= kSummarisedAbove) return g;
  double largest = 0;
  for (const Array& part : g.bounds)
    for (const double bound : part.values()) largest = std::max(largest, bound);
  g.summary = summary_of(g.parts, largest);
  g.parts.clear();
  g.bounds.clear();
  return g;
}

// Appends an element's eight bytes, the lowest first. -0 is written as 0 and all NaNs as one, as
// they compare equal.
void append_bytes(std::string& out, double value) {
  if (value == 0) value = 0;
  const auto bits =
      std::isnan(value) ? std::uint64_t{0x7ff8} << 48 : std::bit_cast<std::uint64_t>(value);
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(bits >> shift & 0xff);
}

}  // namespace

TensorSummary summary_of(const std::vector<Array>& parts, double largest_bound) {
  TensorSummary s;
  s.bound = largest_bound;
  std::string bytes;
  double squares = 0;
  for (const Array& part : parts) {
    s.shapes.push_back(part.shape());
    for (const double value : part.values()) {
      append_bytes(bytes, value);
      s.l1 += std::abs(value);
      // Calls std::fma because a compiler may or may not contract the sum, which changes the bytes.
      squares = std::fma(value, value, squares);
      s.max = std::isnan(value) || std::isnan(s.max) ? NAN : std::max(s.max, std::abs(value));
      if (s.first.size() < kFirst) s.first.push_back(value);
    }
  }
  s.l2 = std::sqrt(squares);
  if (largest_bound == 0) s.sha256 = sha256(bytes);
  return s;
}

std::string disagreement(const CaseComparison& guards) {
  const auto place = [](const GuardDifference& d) {
    return d.input.empty() ? std::string("the loss") : "the gradient of " + d.input;
  };
  if (guards.truth) return "the file's truth disagrees in " + place(*guards.truth);
  if (guards.program) return "single_device disagrees in " + place(*guards.program);
  return "";
}

CaseRecord record_of(const Program& program, const Objective& objective,
                     const Simulation& simulation, const CaseComparison& guards) {
  CaseRecord c;
  c.objective = spelled(objective);
  c.world_size = program.world_size;
  c.dtype = program.dtype;
  c.losses = simulation.losses;
  c.loss_bounds.resize(c.losses.size());
  for (std::size_t r = 0; r < simulation.loss_bounds.size() && r < c.losses.size(); ++r)
    c.loss_bounds[r] = golden::rounded_up(simulation.loss_bounds[r]);
  if (!simulation.undecided.empty()) c.why = "a branch is undecided within the rounding error";
  if (c.why.empty()) c.why = disagreement(guards);
  if (c.why.empty() && !simulation.forward_only.empty()) c.why = simulation.forward_only;
  if (!c.why.empty()) return c;
  for (const Input& input : program.inputs) {
    const Gradient* truth = named(simulation.gradients.at(0), input.name);
    if (input.requires_grad && truth)
      c.gradients.push_back(gradient_record(input, *truth, named(simulation.bounds, input.name)));
  }
  return c;
}

}  // namespace distgrad::golden
