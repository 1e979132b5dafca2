// Reads subjects and what is expected of each.
#include <fmt/format.h>

#include <algorithm>

#include "base/number_text.h"
#include "model/backends.h"
#include "model/findings.h"
#include "scenario/parts.h"
#include "scenario/printable.h"
#include "scenario/subject_name.h"
#include "scenario/torch_version.h"

namespace distgrad {
namespace {

const std::vector<std::string>& verdicts() {
  static const std::vector<std::string> all(kVerdicts.begin(), kVerdicts.end());
  return all;
}

constexpr std::string_view kExpectationForm =
    "must be \"match\", { \"verdict\": \"mismatch\", \"finding\": ... }, or a list of these with "
    "\"when\"";

When read_when(const JsonValue& value, Problems& problems) {
  When when;
  if (!read_object(value, "{ \"world_size\": 1 }", problems)) return when;
  check_keys(value, {"world_size", "dtype", "backend", "torch"}, problems);
  if (value.size() == 0)
    problems.at(value, "names no condition; leave \"when\" out to apply always");
  if (const auto size = value.member("world_size"))
    if (const auto number = read_integer(*size, 1, kMaxWorldSize, problems))
      when.world_size = static_cast<int>(*number);
  if (const auto dtype = value.member("dtype")) {
    std::vector<std::string> names;
    for (const DTypeTraits& t : kDTypes) names.emplace_back(t.name);
    if (const auto name = read_name_among(*dtype, "dtype", names, problems))
      when.dtype = *dtype_named(*name);
  }
  if (const auto backend = value.member("backend")) {
    std::vector<std::string> names;
    for (const BackendRow& row : kBackends) names.emplace_back(row.name);
    when.backend = read_name_among(*backend, "backend", names, problems).value_or("");
  }
  if (const auto torch = value.member("torch"))
    if (const auto text = read_text(*torch, problems)) {
      when.torch = *text;
      if (const std::string why = problem_with_torch_condition(*text); !why.empty())
        problems.at(*torch, why);
    }
  return when;
}

// Reads gradients by rank; null is a missing gradient.
std::vector<std::optional<Array>> read_gradients_of_input(const JsonValue& value,
                                                          Problems& problems) {
  std::vector<std::optional<Array>> by_rank;
  if (!read_list(value, "one gradient for each rank (null where it is missing)", problems))
    return by_rank;
  for (const JsonValue& item : value.children()) {
    if (item.kind() == JsonKind::kNull) {
      by_rank.emplace_back(std::nullopt);
      continue;
    }
    auto array = read_array(item, problems);
    if (!array) break;
    by_rank.emplace_back(std::move(*array));
  }
  return by_rank;
}

void check_number_of_ranks(const JsonValue& gradient, const Expectation& expectation,
                           const Parts& parts) {
  const std::vector<int>& all = parts.scenario.world_sizes;
  const std::optional<int> only = expectation.when ? expectation.when->world_size : std::nullopt;
  for (const int size : only ? std::vector<int>{*only} : all) {
    if (gradient.size() == static_cast<std::size_t>(size)) continue;
    const std::string hint =
        only || all.size() == 1 ? "" : "; give them under \"when\": { \"world_size\": ... }";
    parts.problems.at(
        gradient, fmt::format("has {}, the world {}{}", count_text(std::ssize(gradient), "value"),
                              count_text(size, "rank"), hint));
    return;
  }
}

void read_gradients(const JsonValue& value, Expectation& expectation, const Parts& parts) {
  if (!read_object(value, "{ \"x\": [1.0, 2.0] }", parts.problems)) return;
  const std::vector<std::string> names = input_names(parts.scenario);
  for (const JsonValue& member : value.children()) {
    if (parts.problems.full()) return;
    const Input* input = input_named(parts.scenario, member.key());
    if (!input) {
      parts.problems.at_key(member, "unknown input " + in_quotes(member.key()) +
                                        name_hint_or_choices(member.key(), names, "it is"));
    } else if (!input->requires_grad) {
      parts.problems.at_key(
          member, in_quotes(member.key()) + " has \"requires_grad\": false, so no gradient");
    } else {
      expectation.gradients.emplace_back(member.key(),
                                         read_gradients_of_input(member, parts.problems));
      if (member.is_list()) check_number_of_ranks(member, expectation, parts);
    }
  }
}

// Refuses parts that a verdict cannot have: no finding but `vacuous` comes with a match.
void check_parts_fit_verdict(const JsonValue& value, const Expectation& expectation,
                             Problems& problems) {
  const Verdict verdict = expectation.verdict;
  const auto refuse = [&](std::string_view key, std::string_view why) {
    if (const auto part = value.member(key))
      problems.at_key(*part, fmt::format("{} {}", in_quotes(name_of(verdict)), why));
  };
  if (verdict == Verdict::kMatch) {
    if (expectation.finding != "vacuous")
      refuse("finding", "has no finding but \"vacuous\"; others come with \"mismatch\"");
    refuse("collective", "blames no collective; a finding comes with \"verdict\": \"mismatch\"");
    refuse("message",
           "has no message; a message comes with \"error\", \"skipped\" or \"disputed\"");
  }
  if (verdict == Verdict::kError || verdict == Verdict::kSkipped)
    refuse("gradients", "has no gradients");
}

Expectation read_expectation_object(const JsonValue& value, const Parts& parts) {
  Problems& problems = parts.problems;
  Expectation expectation;
  check_keys(value, {"verdict", "finding", "collective", "gradients", "message", "when"}, problems);
  if (const auto when = value.member("when")) expectation.when = read_when(*when, problems);
  const auto verdict = value.member("verdict");
  const auto known =
      verdict ? read_name_among(*verdict, "verdict", verdicts(), problems) : std::nullopt;
  if (known) expectation.verdict = *verdict_named(*known);
  if (!verdict) problems.missing(value, "verdict", "is missing; it is " + choices(verdicts()));
  if (const auto finding = value.member("finding")) {
    std::vector<std::string> names;
    for (const FindingRow& row : kFindings) names.emplace_back(row.name);
    if (const auto name = read_name_among(*finding, "finding", names, problems))
      expectation.finding = *FindingName::named(*name);
  }
  if (const auto collective = value.member("collective")) {
    std::vector<std::string> names;
    for (const CollectiveTraits& t : kCollectives) names.emplace_back(t.name);
    expectation.collective =
        read_name_among(*collective, "collective", names, problems).value_or("");
  }
  if (const auto message = value.member("message")) {
    expectation.message = read_text(*message, problems).value_or(" ");
    if (expectation.message.empty())
      problems.at(*message, "is empty, and every message has that in it; leave it out");
  }
  if (const auto gradients = value.member("gradients"))
    read_gradients(*gradients, expectation, parts);
  if (known) check_parts_fit_verdict(value, expectation, problems);
  return expectation;
}

std::optional<Expectation> read_expectation(const JsonValue& value, const Parts& parts) {
  if (value.is_object()) return read_expectation_object(value, parts);
  if (value.is_text() && value.text() == "match") return Expectation{};
  const auto& all = verdicts();
  if (value.is_text() && std::find(all.begin(), all.end(), value.text()) != all.end()) {
    parts.problems.at(value, fmt::format("only \"match\" stands alone; write {{ \"verdict\": {} }}",
                                         in_quotes(value.text())));
  } else {
    std::string hint = value.is_text() ? name_hint(value.text(), all) : std::string();
    parts.problems.at(value,
                      fmt::format("{}, not {}{}", kExpectationForm, description(value), hint));
  }
  return std::nullopt;
}

void read_expectations(const JsonValue& member, ExpectedSubject& subject, const Parts& parts) {
  if (member.is_list() && member.size() == 0)
    parts.problems.at(member, "is an empty list; write \"match\"");
  for (const JsonValue& item :
       member.is_list() ? member.children() : std::vector<JsonValue>{member}) {
    if (auto expectation = read_expectation(item, parts))
      subject.expectations.push_back(std::move(*expectation));
    if (parts.problems.full()) return;
  }
}

}  // namespace

void read_subjects(Parts& parts) {
  const auto value = parts.key("subjects");
  if (!value) {
    parts.scenario.subjects = {{"reference", {Expectation{}}}};
    return;
  }
  if (!read_object(*value, "{ \"reference\": \"match\" }", parts.problems)) return;
  if (value->size() == 0)
    parts.problems.at(*value, "names no subject; leave it out for { \"reference\": \"match\" }");
  for (const JsonValue& member : value->children()) {
    if (parts.problems.full()) return;
    if (const std::string why = problem_with_subject(member.key()); !why.empty())
      parts.problems.at_key(member, why);
    ExpectedSubject subject{.subject = member.key(), .expectations = {}};
    read_expectations(member, subject, parts);
    parts.scenario.subjects.push_back(std::move(subject));
  }
}

}  // namespace distgrad
