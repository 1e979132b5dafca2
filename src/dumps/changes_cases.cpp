#include <fmt/format.h>

#include "dumps/comparison_cases.h"
#include "report/summary.h"

namespace distgrad::dumps {
namespace {

// Pages name a case by its file and what follows it.
const Scenario& file_of(const ReportedCase& c, std::map<std::string, Scenario>& files) {
  const std::string path = !c.file.empty() && c.id.starts_with(c.file) ? c.file : c.id;
  Scenario& file = files[path];
  file.file = file.name = path;
  return file;
}

CaseResult case_of(const ReportedCase& c, const Scenario& file) {
  CaseResult result;
  result.which.scenario = &file;
  result.which.id = c.id;
  result.which.subject = c.subject;
  result.which.backend = c.backend;
  result.which.world_size = c.world_size;
  result.which.dtype = c.dtype;
  result.verdict = c.verdict;
  if (c.finding) result.findings = {*c.finding};
  result.error = c.error;
  return result;
}

std::string was_text(const CaseChange& c) {
  return c.before.empty() ? "it is new" : "it was " + c.before;
}

CaseResult newly_failing_case(const CaseChange& c, const Scenario& file) {
  CaseResult result = case_of(c.latest, file);
  result.as_expected = false;
  result.why = fmt::format("newly failing: {}; {}", c.after, was_text(c));
  const auto tell = [&](std::string& text) {
    text = fmt::format("Newly failing: {}.{}{}", was_text(c), text.empty() ? "" : " ", text);
  };
  if (result.verdict == Verdict::kMismatch && result.findings.empty())
    result.findings = {Finding{.rule = FindingName("unexplained"),
                               .collective = {},
                               .step = {},
                               .ranks = {},
                               .factor = {},
                               .text = {}}};
  if (result.error)
    tell(result.error->message);
  else if (!result.findings.empty())
    tell(result.findings.front().text);
  return result;
}

// What the later report has not, or what it skipped.
CaseResult missing_case(const CaseChange& c, const Scenario& file, const char* words) {
  CaseResult result = case_of(c.latest, file);
  result.verdict = Verdict::kSkipped;
  result.findings.clear();
  result.error.reset();
  result.why = fmt::format("{}; it was {}", words, c.before);
  return result;
}

// Nothing that has become worse, whatever the verdict.
CaseResult accepted_case(const CaseChange& c, const Scenario& file) {
  CaseResult result = case_of(c.latest, file);
  if (c.latest.status != ReportedCase::Status::kSkipped) result.as_expected = true;
  result.which.expected.verdict = c.latest.verdict;
  if (c.before == c.after)
    result.why = "as before";
  else
    result.why = fmt::format("{}; {}", c.after, was_text(c));
  return result;
}

}  // namespace

ComparisonCases changes_cases(const ReportChanges& changes) {
  ComparisonCases made;
  const auto add = [&](const std::vector<CaseChange>& list, const auto& make) {
    for (const CaseChange& c : list)
      made.report.cases.push_back(make(c, file_of(c.latest, made.files)));
  };
  add(changes.newly_failing, newly_failing_case);
  add(changes.vanished, [](const CaseChange& c, const Scenario& file) {
    CaseResult result = missing_case(c, file, "vanished");
    result.as_expected = false;
    return result;
  });
  add(changes.no_longer_run, [](const CaseChange& c, const Scenario& file) {
    return missing_case(c, file, "no longer run");
  });
  for (const auto* list : {&changes.changed, &changes.fixed, &changes.added, &changes.unchanged})
    add(*list, accepted_case);
  made.report.summary = summary_of(made.report.cases);
  return made;
}

}  // namespace distgrad::dumps
