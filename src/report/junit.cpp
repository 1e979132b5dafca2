#include "report/junit.h"

#include <fmt/format.h>

#include <map>
#include <pugixml.hpp>
#include <sstream>

#include "report/case_words.h"
#include "report/valid_text.h"

namespace distgrad {
namespace {

// Adds up a test case, a suite or all of them.
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

// Turns "scenarios/debate/sum.json" into "scenarios.debate.sum": Jenkins takes what is before the
// last dot for a package.
std::string class_name(std::string_view file) {
  if (file.ends_with(".json")) file.remove_suffix(5);
  while (file.starts_with("./")) file.remove_prefix(2);
  while (file.starts_with("/")) file.remove_prefix(1);
  std::string name(file);
  for (char& c : name)
    if (c == '/') c = '.';
  return name;
}

// Returns "sum:subject=torch_nn,world_size=3", which differs from other files' names on pages that
// show only names.
std::string test_name(const CaseResult& r) {
  const Scenario& scenario = *r.which.scenario;
  return scenario.name + r.which.id.substr(scenario.file.size());
}

void set(pugi::xml_node node, const char* name, std::string_view value) {
  node.append_attribute(name).set_value(valid_text(value).c_str());
}

// Surefire's schema has at most three decimals.
void set_time(pugi::xml_node node, double seconds) {
  set(node, "time", fmt::format("{:.3f}", seconds));
}

void set_text(pugi::xml_node node, std::string_view text) {
  node.text().set(valid_text(text).c_str());
}

void add_outcome(pugi::xml_node test_case, const char* element, std::string_view type,
                 std::string_view message, std::string_view text) {
  pugi::xml_node outcome = test_case.append_child(element);
  if (!type.empty()) set(outcome, "type", type);
  set(outcome, "message", message);
  if (!text.empty()) set_text(outcome, text);
}

std::string failure_type(const CaseResult& r) {
  if (!r.findings.empty()) return r.findings.front().rule;
  return "not-as-expected";
}

// Holds a suite's test cases and their counts.
struct Suite {
  pugi::xml_node node;
  Counts counts;

  pugi::xml_node add_test_case(std::string_view name, std::string_view class_name, double seconds) {
    pugi::xml_node test_case = node.append_child("testcase");
    set(test_case, "name", name);
    set(test_case, "classname", class_name);
    set_time(test_case, seconds);
    ++counts.tests;
    counts.seconds += seconds;
    return test_case;
  }
};

// `where` follows what is said of a wrong case.
void add_case(Suite& suite, const CaseResult& r, const FormatContext& context,
              const std::string& where) {
  const pugi::xml_node test_case =
      suite.add_test_case(test_name(r), class_name(r.which.scenario->file), r.elapsed_s);
  if (r.broken) {
    ++suite.counts.errors;
    add_outcome(test_case, "error", r.error ? name_of(r.error->kind) : "error", headline(r),
                reported_alone(r, context));
  } else if (is_wrong(r)) {
    ++suite.counts.failures;
    add_outcome(test_case, "failure", failure_type(r), headline(r),
                reported_alone(r, context) + where);
  } else if (!r.as_expected || r.verdict == Verdict::kSkipped || r.verdict == Verdict::kDisputed) {
    ++suite.counts.skipped;
    const std::string disputed = r.verdict == Verdict::kDisputed ? "disputed: " : "";
    add_outcome(test_case, "skipped", "", disputed + r.why, "");
  } else if (r.verdict != Verdict::kMatch || is_vacuous(r)) {
    set_text(pugi::xml_node(test_case).append_child("system-out"), reported_alone(r, context));
  }
}

// Adds a problem of the run rather than of a case.
void add_problem(Suite& suite, std::string_view name, std::string_view in, std::string_view type,
                 std::string_view message) {
  ++suite.counts.errors;
  add_outcome(suite.add_test_case(name, class_name(in), 0), "error", type, message, message);
}

// Keeps suites in the order in which the files appear.
class Suites {
 public:
  explicit Suites(pugi::xml_node all) : all_(all) {}

  Suite& of(const std::string& name) {
    const auto [place, is_new] = by_name_.try_emplace(name);
    if (is_new) {
      place->second.node = all_.append_child("testsuite");
      set(place->second.node, "name", name);
    }
    return place->second;
  }

  // Writes the sums. Call it once, at the end.
  void close(double elapsed_s, const std::string& host) {
    Counts sum;
    for (auto& [name, suite] : by_name_) {
      sum.add(suite.counts);
      set_counts(suite.node, suite.counts);
      set(suite.node, "skipped", std::to_string(suite.counts.skipped));
      set_time(suite.node, suite.counts.seconds);
      if (!host.empty()) set(suite.node, "hostname", host);
    }
    set_counts(all_, sum);
    set_time(all_, elapsed_s);
  }

 private:
  static void set_counts(pugi::xml_node node, const Counts& counts) {
    set(node, "tests", std::to_string(counts.tests));
    set(node, "failures", std::to_string(counts.failures));
    set(node, "errors", std::to_string(counts.errors));
  }

  pugi::xml_node all_;
  std::map<std::string, Suite> by_name_;
};

// Names each place, since a file may have several problems, and readers take test cases of one name
// for one.
std::string problem_name(const InvalidFile& f) {
  if (f.position.line == 0) return "can be used";  // usually a subject
  const std::string place = fmt::format("{}:{}", f.position.line, f.position.column);
  return "valid scenario:" + place + (f.pointer.empty() ? "" : " " + f.pointer);
}

}  // namespace

std::string junit_text(const Report& report, const FormatContext& context) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  set(declaration, "version", "1.0");
  set(declaration, "encoding", "UTF-8");
  pugi::xml_node all = document.append_child("testsuites");
  set(all, "name", "distgrad");
  Suites suites(all);
  const std::string where = where_text(report);
  for (const CaseResult& r : report.cases)
    add_case(suites.of(r.which.scenario->file), r, context, where);
  for (const InvalidFile& f : report.invalid)
    add_problem(suites.of(f.file), problem_name(f), f.file, "invalid-scenario", problem_text(f));
  if (context.broken_off)
    add_problem(suites.of("distgrad"), "the whole run", "distgrad", "broken-off",
                context.ended_early);
  suites.close(report.summary.elapsed_s, context.host);
  std::ostringstream text;
  document.save(text, "  ");
  return text.str();
}

}  // namespace distgrad
