// write_report CASES FILE: writes the HTML report of a made-up run in which every case fails, as
// large as reports get, without having to run it.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>

#include "base/atomic_file.h"
#include "report/html.h"
#include "report/sample_cases.h"
#include "report/summary.h"

namespace distgrad {
namespace {

constexpr int kCasesOfFile = 40;
constexpr const char* kSubjects[] = {"in_place", "torch_nn", "simclr", "horovod", "megatron"};
constexpr FindingName kFindings[] = {"identity-backward", "scaled", "own-slice",
                                     "missing-reduction", "unexplained"};

const Scenario* scenario(int number) {
  static std::list<Scenario> all;
  if (static_cast<int>(all.size()) > number) return &all.back();
  Scenario s;
  s.name = fmt::format("attention_{:03}", number);
  s.file = fmt::format("mine/layers/block_{}/{}.json", number % 7, s.name);
  s.note =
      "Two column-parallel projections, a head-wise product, and a row-parallel one behind it.";
  const std::vector<AxisLayout> local = {{"", {Layout::Kind::kLocal, 0}}};
  RandomSpec random;
  random.shape = {std::int64_t{4}, std::int64_t{6}};
  s.inputs = {{"x", "", random, true, local, {}}, {"w", "", Array::scalar(1), true, local, {}}};
  CollectiveCall reduce;
  reduce.operand = {"h", ""};
  s.steps = {{"h", "", Expression{"torch.tanh(x * w)", ""}}, {"y", "", reduce}};
  s.loss = {"(y * y).sum()", ""};
  return &all.emplace_back(std::move(s));
}

Array noise(int seed, double scale) {
  std::vector<double> values;
  std::uint64_t state = static_cast<std::uint64_t>(seed) * 2654435761u + 12345;
  for (int i = 0; i < 24; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(scale * (static_cast<double>(state >> 11) * 0x1p-53 - 0.5));
  }
  return Array({4, 6}, std::move(values));
}

Array sum(const Array& a, const Array& b) {
  std::vector<double> values(a.values().begin(), a.values().end());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += b.values()[i];
  return Array(a.shape(), std::move(values));
}

GradientComparison gradient(const std::string& input, int i) {
  GradientComparison g;
  g.input = input;
  g.layout = "local";
  for (int rank = 0; rank < 4; ++rank) {
    g.truth_by_rank.emplace_back(noise(8 * i + rank, 2));
    g.observed_by_rank.emplace_back(
        rank == 0 ? *g.truth_by_rank.back()
                  : sum(*g.truth_by_rank.back(), noise(8 * i + rank + 4, 0.1 * rank)));
    g.bounds.emplace_back(noise(1, 0));
  }
  g.truth_by_objective = {{"sum", g.truth_by_rank}};
  g.matches = {{"sum", false}};
  g.max_abs_error = 0.1 * (1 + i % 97);
  g.max_rel_error = g.max_abs_error / 2;
  g.equal = false;
  return g;
}

CaseResult failing_case(int i) {
  CaseResult r = sample::in_place_mismatch();
  const int kind = i % 5;
  r.which.scenario = scenario(i / kCasesOfFile);
  r.which.subject = kSubjects[kind];
  r.which.world_size = 4;
  r.which.id = fmt::format("{}:subject={},world_size={}", r.which.scenario->file, kSubjects[kind],
                           1 + i % kCasesOfFile);
  r.gradients = {gradient("x", i), gradient("w", i + 50'000)};
  r.findings[0].rule = kFindings[kind];
  r.warnings = {
      {0, "c10d::allreduce_: an autograd kernel was not registered to the Autograd key(s)"}};
  return r;
}

ValueTrace trace_of_case(const CaseResult& r) {
  Explanation e;
  const auto of = [&](const char* title, ExplainedValue::Kind kind, bool wrong) {
    ExplainedValue v{.kind = kind,
                     .title = title,
                     .value = {},
                     .observed_value = {},
                     .cotangent = {},
                     .ranks_cotangent = {},
                     .mark = {}};
    for (int rank = 0; rank < 4; ++rank) {
      v.value.push_back(noise(rank, 1));
      v.cotangent.push_back(noise(rank + 9, 1));
      if (wrong) v.ranks_cotangent.push_back(rank == 0 ? noise(9, 1) : noise(rank + 19, 1));
    }
    return v;
  };
  e.values = {of("x   (local: each rank its own)", ExplainedValue::Kind::kInput, true),
              of("h = torch.tanh(x * w)", ExplainedValue::Kind::kStep, true),
              of("y = all_reduce(h, op=sum)", ExplainedValue::Kind::kStep, false),
              of("loss: l_r = (y * y).sum()", ExplainedValue::Kind::kLoss, false)};
  e.values[2].mark = "the cotangents part here: the backward of this step is not the adjoint";
  e.parting = "In the backward of step y.";
  return trace_of(e, r.which.dtype);
}

}  // namespace
}  // namespace distgrad

int main(int argc, char** argv) {
  using namespace distgrad;
  if (argc != 3) return 2;
  Report report;
  report.command = "distgrad run mine --html report.html";
  report.torch = "2.15.0";
  std::map<std::string, ValueTrace> traces;
  for (int i = 0; i < std::atoi(argv[1]); ++i) {
    report.cases.push_back(failing_case(i));
    if (traces.size() < 200)
      traces.emplace(report.cases.back().which.id, trace_of_case(report.cases.back()));
  }
  report.summary = summary_of(report.cases);
  FormatContext context;
  context.traces = &traces;
  const std::string html = html_report(report, context);
  std::puts("writing");
  std::fflush(stdout);
  write_file_atomically(argv[2], html);
}
