#include "cli/fuzz_report.h"

#include <map>
#include <utility>

#include "base/version.h"
#include "cli/load.h"
#include "cli/worst_traces.h"
#include "report/summary.h"

namespace distgrad {
namespace {

class Collector : public VerifyListener {
 public:
  explicit Collector(Report& report) : report_(report) {}
  void on_result(CaseResult result) override { report_.cases.push_back(std::move(result)); }
  void on_conclusion(const Conclusion& conclusion) override { traces_.consider(conclusion); }
  void on_invalid(InvalidFile invalid) override { report_.invalid.push_back(std::move(invalid)); }
  void on_progress(std::size_t, std::size_t) override {}
  std::map<std::string, ValueTrace> traces() const { return traces_.by_case(); }

 private:
  Report& report_;
  WorstTraces traces_;
};

}  // namespace

bool report_failures(const std::vector<ReportFile>& reports, const std::vector<std::string>& paths,
                     const FuzzSummary& fuzz, Interpreters& interpreters) {
  Overrides overrides;
  overrides.allow_code = true;  // it ran already
  if (!fuzz.python.empty()) overrides.pythons = {fuzz.python};
  const Loaded loaded = paths.empty() ? Loaded{} : load_cases(paths, overrides);
  Report report;
  report.command = fuzz.command;
  report.torch = kTorchVersion;
  report.unit = "program";
  Collector collector(report);
  verify(loaded.cases,
         {.interpreters = &interpreters, .every_objective = true, .replace_truth = {}}, collector);
  report.summary = summary_of(report.cases);
  report.summary.as_expected += static_cast<int>(fuzz.matches);
  report.summary.cases += static_cast<int>(fuzz.matches);
  report.summary.elapsed_s = fuzz.elapsed_s;
  TextOptions text;
  text.again = "distgrad run --allow-code";
  FormatContext context = format_context(text);
  const std::map<std::string, ValueTrace> traces = collector.traces();
  if (wants_traces(reports)) context.traces = &traces;
  return write_reports(reports, report, context);
}

}  // namespace distgrad
