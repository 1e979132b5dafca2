// Both sides of the bounds on random programs: a right subject is never accused, and a rank that is
// dropped, doubled or swapped is always seen where the dtype can show it.
// DISTGRAD_RANDOM_PROGRAMS=10000 makes it the long test (a dtype).
#include "tolerance/random_program.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "rank/expression/scalar_type.h"

namespace distgrad {
namespace {

using testing_programs::ByRank;
using testing_programs::Fault;
using testing_programs::Outcome;
using testing_programs::Random;
using testing_programs::RandomProgram;

constexpr int kQuickPrograms = 150;
constexpr int kRunsEach = 3;

// DISTGRAD_RANDOM_PROGRAM=341 runs that one only.
int first_program() {
  const char* text = std::getenv("DISTGRAD_RANDOM_PROGRAM");
  return text != nullptr ? std::atoi(text) : 0;
}

int programs_to_try() {
  if (std::getenv("DISTGRAD_RANDOM_PROGRAM") != nullptr) return 1;
  const char* text = std::getenv("DISTGRAD_RANDOM_PROGRAMS");
  return text != nullptr ? std::atoi(text) : kQuickPrograms;
}

// The figures of one tensor after another, flat.
struct Flat {
  std::vector<double> values;
  std::vector<double> bounds;
};

void append(std::vector<double>& to, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  to.insert(to.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
}

std::vector<double> flat_values(const Outcome& outcome) {
  std::vector<double> values;
  for (const ByRank& gradient : outcome.gradients)
    for (const at::Tensor& g : gradient) append(values, g);
  for (const at::Tensor& loss : outcome.losses) append(values, loss);
  return values;
}

struct Simulated {
  Flat flat;
  std::vector<std::string> undecided, unknown;
};

Simulated simulate(const RandomProgram& program, DType dtype, const Fault& fault) {
  ErrorAnalysis analysis(dtype);
  const Outcome outcome = testing_programs::simulate(program, fault, analysis);
  Simulated s;
  s.flat.values = flat_values(outcome);
  for (const ByRank& gradient : outcome.gradients)
    for (const at::Tensor& g : gradient) append(s.flat.bounds, analysis.bound_of(g));
  for (const at::Tensor& loss : outcome.losses) append(s.flat.bounds, analysis.bound_of(loss));
  s.undecided = analysis.undecided();
  s.unknown = analysis.unknown_operators();
  return s;
}

bool differs(double observed, double truth, double bound) {
  if (std::isinf(bound)) return false;
  if (std::isnan(observed) || std::isnan(truth)) return std::isnan(observed) != std::isnan(truth);
  return !(std::fabs(observed - truth) <= bound) && observed != truth;
}

struct Figures {
  int programs = 0, undecided = 0, bitwise = 0;
  int faults = 0, must_be_seen = 0, seen = 0;
  std::vector<double> tightness;  // by program: the largest |run - simulation| / bound
  std::vector<double> relative;   // by program: the largest bound / the largest figure

  static double quantile(std::vector<double> v, double q) {
    if (v.empty()) return 0;
    std::sort(v.begin(), v.end());
    return v[static_cast<std::size_t>(q * static_cast<double>(v.size() - 1))];
  }
  void print(std::string_view name) const {
    std::cout << name << ": " << programs << " programs, " << undecided << " undecided, " << bitwise
              << " bitwise; |run - truth| / bound median " << quantile(tightness, 0.5)
              << " largest " << quantile(tightness, 1) << "; largest bound / largest figure median "
              << quantile(relative, 0.5) << " 90 % " << quantile(relative, 0.9) << "; faults "
              << faults << ", that must be seen " << must_be_seen << ", seen " << seen << std::endl;
  }
};

class RandomPrograms : public testing::TestWithParam<DType> {};

// Never accuses: all admissible runs of a program lie within its bounds.
void check_right_subjects(const RandomProgram& program, DType dtype, const Simulated& s,
                          Random& random, Figures& figures) {
  double worst = 0;
  for (int k = 0; k < kRunsEach; ++k) {
    const std::vector<double> observed =
        flat_values(testing_programs::run(program, scalar_type(dtype), Fault{}, random));
    ASSERT_EQ(observed.size(), s.flat.values.size());
    for (std::size_t i = 0; i < observed.size(); ++i) {
      ASSERT_FALSE(differs(observed[i], s.flat.values[i], s.flat.bounds[i]))
          << "figure " << i << ": " << observed[i] << " is off " << s.flat.values[i] << " by "
          << observed[i] - s.flat.values[i] << ", bound " << s.flat.bounds[i] << "\n"
          << program.text();
      if (s.flat.bounds[i] > 0 && std::isfinite(s.flat.bounds[i]))
        worst = std::max(worst, std::fabs(observed[i] - s.flat.values[i]) / s.flat.bounds[i]);
    }
  }
  figures.tightness.push_back(worst);
}

// Always seen: where the wrong program's own figures, in exact arithmetic, are further from the
// truth than both bounds.
void check_wrong_subject(const RandomProgram& program, DType dtype, const Simulated& s,
                         Random& random, Figures& figures) {
  Fault fault;
  fault.kind = static_cast<Fault::Kind>(1 + random() % 3);
  fault.collective = static_cast<int>(random() % testing_programs::collectives_in(program));
  fault.rank = static_cast<int>(random() % program.ranks);
  const Simulated wrong = simulate(program, dtype, fault);
  if (!wrong.undecided.empty()) return;
  bool different = false, must_be_seen = false;
  for (std::size_t i = 0; i < s.flat.values.size(); ++i) {
    const double distance = std::fabs(wrong.flat.values[i] - s.flat.values[i]);
    different |= distance > 1e-9 * std::fabs(s.flat.values[i]);
    must_be_seen |= distance > s.flat.bounds[i] + wrong.flat.bounds[i];
  }
  if (!different) return;  // the fault changes nothing (a swap in a sum, a value never used)
  const std::vector<double> observed =
      flat_values(testing_programs::run(program, scalar_type(dtype), fault, random));
  bool seen = false;
  for (std::size_t i = 0; i < observed.size(); ++i)
    seen |= differs(observed[i], s.flat.values[i], s.flat.bounds[i]);
  ++figures.faults;
  figures.must_be_seen += must_be_seen;
  figures.seen += seen;
  ASSERT_TRUE(seen || !must_be_seen) << program.text();
}

TEST_P(RandomPrograms, NeverAccuseARightSubjectAndSeeAWrongOne) {
  at::set_num_threads(1);
  const DType dtype = GetParam();
  Figures figures;
  for (int p = first_program(); p < first_program() + programs_to_try(); ++p) {
    Random random(static_cast<std::uint64_t>(p) * 7919 + static_cast<std::uint64_t>(dtype));
    const RandomProgram program = testing_programs::random_program(random, scalar_type(dtype));
    const Simulated s = simulate(program, dtype, Fault{});
    ASSERT_THAT(s.unknown, testing::IsEmpty()) << program.text();
    ++figures.programs;
    if (!s.undecided.empty()) {
      ++figures.undecided;
      continue;
    }
    SCOPED_TRACE("program " + std::to_string(p));
    figures.bitwise +=
        std::all_of(s.flat.bounds.begin(), s.flat.bounds.end(), [](double b) { return b == 0; });
    double largest = 0;
    for (const double v : s.flat.values) largest = std::max(largest, std::fabs(v));
    if (largest > 0)
      figures.relative.push_back(*std::max_element(s.flat.bounds.begin(), s.flat.bounds.end()) /
                                 largest);
    check_right_subjects(program, dtype, s, random, figures);
    if (HasFatalFailure()) return;
    check_wrong_subject(program, dtype, s, random, figures);
    if (HasFatalFailure()) return;
  }
  figures.print(traits(dtype).name);
  EXPECT_GT(figures.must_be_seen,
            figures.faults / 3);  // bounds that hide most faults would be no use
}

INSTANTIATE_TEST_SUITE_P(DTypes, RandomPrograms,
                         testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                         DType::kFloat16),
                         [](const auto& instance) {
                           return std::string(traits(instance.param).name);
                         });

}  // namespace
}  // namespace distgrad
