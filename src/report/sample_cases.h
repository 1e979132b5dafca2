// Makes finished cases by hand, for the tests of the reports.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "model/report.h"
#include "report/summary.h"

namespace distgrad::sample {

using Parts = std::vector<std::optional<Array>>;

inline Parts scalars(std::initializer_list<double> values) {
  Parts parts;
  for (const double v : values) parts.emplace_back(Array::scalar(v));
  return parts;
}

inline Array vector(std::vector<double> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Array({n}, std::move(values));
}

inline const Scenario* scenario(const std::string& file) {
  static std::list<Scenario> all;
  for (const Scenario& s : all)
    if (s.file == file) return &s;
  Scenario s;
  s.file = file;
  s.name = file.substr(file.rfind('/') + 1);
  s.name = s.name.substr(0, s.name.rfind('.'));
  return &all.emplace_back(std::move(s));
}

// `place` is what follows the file's name in the id, with its colon.
inline CaseResult match(const std::string& file, const std::string& place = "",
                        const std::string& subject = "reference") {
  CaseResult r;
  r.which.scenario = scenario(file);
  r.which.id = file + place;
  r.which.subject = subject;
  r.which.backend = "gloo";
  r.which.world_size = 2;
  r.as_expected = true;
  r.simulated_losses = {25, 25};
  r.distributed_losses = {25, 25};
  r.elapsed_s = 0.004;
  return r;
}

// Holds pytorch#58005's program: x = 1 on two ranks, y = all_reduce((rank + 2) x), loss y²,
// objective sum.
inline GradientComparison debated(Parts observed) {
  GradientComparison g;
  g.input = "x";
  g.layout = "local";
  g.truth_by_rank = scalars({40, 60});
  g.observed_by_rank = std::move(observed);
  g.truth_by_objective = {{"sum", scalars({40, 60})},
                          {"mean", scalars({20, 30})},
                          {"replicated", scalars({20, 30})},
                          {"rank:0", scalars({20, 30})},
                          {"rank:1", scalars({20, 30})}};
  return g;
}

inline CaseResult in_place_mismatch(const std::string& file = "mine/all_reduce_sum.json") {
  CaseResult r = match(file, ":subject=in_place", "in_place");
  r.verdict = Verdict::kMismatch;
  r.as_expected = false;
  GradientComparison g = debated(scalars({20, 30}));
  g.matches = {
      {"sum", false}, {"mean", true}, {"replicated", true}, {"rank:0", true}, {"rank:1", true}};
  g.max_abs_error = 30;
  g.max_rel_error = 0.5;
  g.first_difference = GradientComparison::Place{0, {}};
  g.equal = false;
  r.gradients = {g};
  r.findings = {{"identity-backward",
                 "all_reduce",
                 "y",
                 {0, 1},
                 0.5,
                 "The gradients are 1/2 of the truth on every rank: the backward of all_reduce "
                 "passed the local cotangent on and dropped the other ranks'. Right if the loss is "
                 "one loss that every rank computes (objective \"replicated\")."}};
  return r;
}

// Returns the same, with its backward measured.
inline CaseResult measured_mismatch() {
  CaseResult r = in_place_mismatch();
  Measured m;
  m.formula = "x̄_r = ȳ_r";
  m.right = "x̄_r = Σ_k ȳ_k";
  m.shown_by = "a basis of 2 cotangents and 5 random ones";
  m.ranks = {0, 1};
  m.coefficients = {{1, 0}, {0, 1}};
  m.matrices = Measured::Matrices{{1, 1}, {1, 1}, {1, 0, 0, 1}, {1, 1, 1, 1}};
  r.findings[0].measured = std::move(m);
  return r;
}

inline CaseResult skipped(const std::string& file, const std::string& place,
                          const std::string& why) {
  CaseResult r = match(file, place);
  r.verdict = Verdict::kSkipped;
  r.as_expected.reset();
  r.why = why;
  r.simulated_losses.clear();
  r.distributed_losses.clear();
  return r;
}

inline CaseResult hang(const std::string& file, const std::string& place) {
  CaseResult r = match(file, place);
  r.verdict = Verdict::kError;
  r.as_expected = false;
  r.broken = true;
  r.error =
      RankError{ErrorKind::kHang, 1, "y", "rank 1 has been in all_reduce, backward, for 30 s"};
  r.distributed_losses.clear();
  return r;
}

inline CaseResult disputed() {
  CaseResult r = skipped("d.json", "", "undecided within the rounding error: max");
  r.verdict = Verdict::kDisputed;
  return r;
}

inline Report report_of(std::vector<CaseResult> cases) {
  Report report;
  report.command = "distgrad run mine";
  report.torch = "2.15.0";
  report.cases = std::move(cases);
  report.summary = summary_of(report.cases);
  report.summary.elapsed_s = 0.4;
  return report;
}

}  // namespace distgrad::sample
