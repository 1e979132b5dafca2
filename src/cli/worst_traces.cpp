#include "cli/worst_traces.h"

#include <cstdint>

#include "report/worst_first.h"
#include "verify/explanation.h"

namespace distgrad {
namespace {

constexpr std::size_t kKept = 200;
// Bounds the work: cases that go from bad to worse would otherwise take twice the time.
constexpr int kWorkedOut = 1000;
constexpr int kOthers = 40;
constexpr std::int64_t kMostElements = std::int64_t{1} << 20;

bool is_small(const Simulation& simulation) {
  std::int64_t elements = 0;
  for (const StepValue& step : simulation.steps)
    for (const Array& array : step.by_rank) elements += array.size();
  if (!simulation.gradients.empty())
    for (const Gradient& gradient : simulation.gradients.front())
      for (const auto& part : gradient.parts) elements += part ? part->size() : 0;
  return elements <= kMostElements;
}

}  // namespace

WorstTraces::WorstTraces()
    : WorstTraces([](const Conclusion& conclusion) {
        return trace_of(explanation_of(conclusion), conclusion.result.which.dtype);
      }) {}

bool WorstTraces::wants(const Rank& rank, const CaseResult& r) {
  if (!is_wrong(r) || r.broken) return others_ < kOthers;
  return wrong_.size() < kKept || (worked_out_ < kWorkedOut && rank > wrong_.begin()->first);
}

void WorstTraces::consider(const Conclusion& conclusion) {
  const CaseResult& r = conclusion.result;
  const bool happened = r.verdict == Verdict::kMismatch || r.verdict == Verdict::kError;
  if (!conclusion.run || (!is_wrong(r) && !happened)) return;
  const auto [kind, error] = badness(r);
  const Rank rank{kind, error, -considered_++};
  if (!wants(rank, r) || !is_small(conclusion.simulation)) return;
  ValueTrace trace = work_out_(conclusion);
  if (trace.rows.empty()) return;
  const std::string& id = r.which.id;
  if (!traces_.insert_or_assign(id, std::move(trace)).second) return;  // the same case again
  if (!is_wrong(r) || r.broken) {
    ++others_;
    return;
  }
  ++worked_out_;
  wrong_.emplace(rank, id);
  if (wrong_.size() <= kKept) return;
  traces_.erase(wrong_.begin()->second);
  wrong_.erase(wrong_.begin());
}

}  // namespace distgrad
