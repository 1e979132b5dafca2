#include "report/junit.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "report/case_words.h"
#include "report/markup.h"

namespace distgrad {
namespace {

// A line break in an attribute would be read as a space.
std::string attribute(std::string_view name, std::string_view value) {
  return fmt::format(" {}=\"{}\"", name, markup_escaped(value, "\"\n\t"));
}

// Surefire's schema has at most three decimals.
std::string time_attribute(double seconds) { return fmt::format(" time=\"{:.3f}\"", seconds); }

// What a test case, a suite or all of them add up to.
struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;

  void add(const Counts& other) {
    tests += other.tests;
    failures += other.failures;
    errors += other.errors;
    skipped += other.skipped;
    seconds += other.seconds;
  }
};

struct Suite {
  std::string name;
  Counts counts;
  std::string test_cases;

  void add(const Counts& one, const std::string& text) {
    counts.add(one);
    test_cases += text;
  }
};

// "scenarios/debate/sum.json" to "scenarios.debate.sum": Jenkins takes what is before the last dot
// for a package.
std::string class_name(std::string_view file) {
  if (file.ends_with(".json")) file.remove_suffix(5);
  while (file.starts_with("./")) file.remove_prefix(2);
  while (file.starts_with("/")) file.remove_prefix(1);
  std::string name(file);
  for (char& c : name)
    if (c == '/') c = '.';
  return name;
}

// "sum:subject=torch_nn,world_size=3": to be told from the other files' where a page shows names
// only.
std::string test_name(const CaseResult& r) {
  const Scenario& scenario = *r.which.scenario;
  return scenario.name + r.which.id.substr(scenario.file.size());
}

std::string outcome_element(std::string_view element, std::string_view type,
                            std::string_view message, std::string_view text) {
  std::string out = fmt::format("      <{}", element);
  if (!type.empty()) out += attribute("type", type);
  out += attribute("message", message);
  if (text.empty()) return out + "/>\n";
  return out + ">" + markup_escaped(text) + fmt::format("</{}>\n", element);
}

std::string failure_type(const CaseResult& r) {
  if (!r.findings.empty()) return r.findings.front().rule;
  return "not-as-expected";
}

// What is inside the test case, counted.
std::string outcome_of(const CaseResult& r, const FormatContext& context, Counts& counts) {
  if (r.broken) {
    counts.errors = 1;
    return outcome_element("error", std::string(r.error ? name_of(r.error->kind) : "error"),
                           headline(r), reported_alone(r, context));
  }
  if (is_wrong(r)) {
    counts.failures = 1;
    return outcome_element("failure", failure_type(r), headline(r), reported_alone(r, context));
  }
  if (!r.as_expected || r.verdict == Verdict::kSkipped || r.verdict == Verdict::kDisputed) {
    counts.skipped = 1;
    const std::string disputed = r.verdict == Verdict::kDisputed ? "disputed: " : "";
    return outcome_element("skipped", "", disputed + r.why, "");
  }
  if (r.verdict == Verdict::kMatch && !is_vacuous(r)) return {};
  return "      <system-out>" + markup_escaped(reported_alone(r, context)) + "</system-out>\n";
}

void add_case(Suite& suite, const CaseResult& r, const FormatContext& context) {
  Counts counts{.tests = 1, .seconds = r.elapsed_s};
  const std::string inside = outcome_of(r, context, counts);
  std::string text = "    <testcase" + attribute("name", test_name(r)) +
                     attribute("classname", class_name(r.which.scenario->file)) +
                     time_attribute(r.elapsed_s);
  text += inside.empty() ? "/>\n" : ">\n" + inside + "    </testcase>\n";
  suite.add(counts, text);
}

// What is wrong with the run rather than with a case.
void add_problem(Suite& suite, std::string_view name, std::string_view type,
                 std::string_view message) {
  const Counts counts{.tests = 1, .errors = 1};
  suite.add(counts, "    <testcase" + attribute("name", name) +
                        attribute("classname", class_name(suite.name)) + time_attribute(0) + ">\n" +
                        outcome_element("error", type, message, message) + "    </testcase>\n");
}

// In the order in which the files come up.
class Suites {
 public:
  Suite& of(const std::string& name) {
    const auto [place, is_new] = by_name_.emplace(name, all_.size());
    if (is_new) all_.push_back({name, {}, {}});
    return all_[place->second];
  }

  std::string text(double elapsed_s, const std::string& host) const {
    Counts sum;
    for (const Suite& suite : all_) sum.add(suite.counts);
    std::string out =
        fmt::format("<testsuites name=\"distgrad\" tests=\"{}\" failures=\"{}\" errors=\"{}\"{}>\n",
                    sum.tests, sum.failures, sum.errors, time_attribute(elapsed_s));
    for (const Suite& suite : all_) out += suite_text(suite, host);
    return out + "</testsuites>\n";
  }

 private:
  static std::string suite_text(const Suite& suite, const std::string& host) {
    const Counts& sum = suite.counts;
    return "  <testsuite" + attribute("name", suite.name) +
           fmt::format(" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"{}", sum.tests,
                       sum.failures, sum.errors, sum.skipped, time_attribute(sum.seconds)) +
           (host.empty() ? "" : attribute("hostname", host)) + ">\n" + suite.test_cases +
           "  </testsuite>\n";
  }

  std::vector<Suite> all_;
  std::map<std::string, std::size_t> by_name_;
};

// One for each place: a file may have several problems, and test cases of one name are taken for
// one.
std::string problem_name(const InvalidFile& f) {
  if (f.position.line == 0) return "can be used";  // a subject, as a rule
  const std::string place = fmt::format("{}:{}", f.position.line, f.position.column);
  return "valid scenario:" + place + (f.pointer.empty() ? "" : " " + f.pointer);
}

}  // namespace

std::string junit_text(const Report& report, const FormatContext& context) {
  Suites suites;
  for (const CaseResult& r : report.cases) add_case(suites.of(r.which.scenario->file), r, context);
  for (const InvalidFile& f : report.invalid)
    add_problem(suites.of(f.file), problem_name(f), "invalid-scenario", problem_text(f));
  if (context.broken_off)
    add_problem(suites.of("distgrad"), "the whole run", "broken-off", context.ended_early);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" +
         suites.text(report.summary.elapsed_s, context.host);
}

}  // namespace distgrad
