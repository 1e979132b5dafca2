#include "scenario/subject_name.h"

#include <algorithm>
#include <vector>

#include "base/did_you_mean.h"
#include "model/collective_kind.h"
#include "model/libraries.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

std::vector<std::string> built_in_names() {
  std::vector<std::string> names;
  for (const SubjectRow& row : subjects()) names.emplace_back(row.name);
  return names;
}

bool is_built_in(std::string_view subject) {
  const auto rows = subjects();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const SubjectRow& row) { return row.name == subject; });
}

// KIND= at the start of "KIND=SUBJECT"; a '=' later belongs to the path of a file.
std::string_view kind_prefix(std::string_view subject) {
  const std::size_t equals = subject.find('=');
  if (equals == std::string_view::npos ||
      subject.substr(0, equals).find_first_of(":/.") != std::string_view::npos)
    return {};
  return subject.substr(0, equals + 1);
}

std::string problem_with_python(std::string_view target) {
  if (target.empty() || target.front() == ':' || target.back() == ':')
    return "a subject in Python is python:MODULE, python:MODULE:NAME or python:FILE.py:NAME";
  return {};
}

std::string problem_with_library(std::string_view target) {
  const std::size_t colon = target.find(':');
  const std::string_view op = colon == std::string_view::npos ? "" : target.substr(colon + 1);
  const std::size_t scope = op.find("::");
  if (colon == 0 || scope == std::string_view::npos || scope == 0 || scope + 2 == op.size())
    return "an operator of a library is library:FILE.so:NAMESPACE::OP";
  return {};
}

}  // namespace

std::string problem_with_subject(std::string_view subject) {
  if (subject.empty()) return "the subject's name is empty";
  if (const std::string_view prefix = kind_prefix(subject); !prefix.empty()) {
    const std::string_view kind = prefix.substr(0, prefix.size() - 1);
    std::vector<std::string> kinds;
    for (const CollectiveTraits& t : kCollectives) kinds.emplace_back(t.name);
    if (!collective_named(kind))
      return "unknown collective " + in_quotes(kind) + " before '='" + did_you_mean(kind, kinds);
    const std::string_view rest = subject.substr(prefix.size());
    if (!kind_prefix(rest).empty()) return "one KIND= is enough in " + in_quotes(subject);
    return problem_with_subject(rest);
  }
  constexpr std::string_view kPython = "python:", kLibrary = "library:";
  if (subject.starts_with(kPython)) return problem_with_python(subject.substr(kPython.size()));
  if (subject.starts_with(kLibrary)) return problem_with_library(subject.substr(kLibrary.size()));
  if (is_built_in(subject)) return {};
  std::string hint = did_you_mean(subject, built_in_names());
  if (hint.empty()) hint = "; `distgrad list subjects` shows all";
  return "unknown subject " + in_quotes(subject) + hint;
}

std::string why_not_available(std::string_view subject) {
  if (is_built_in(subject)) return {};
  if (!kind_prefix(subject).empty())
    return "subjects for one collective (KIND=SUBJECT) are not available in this build";
  if (subject.starts_with("python:")) return "subjects in Python are not available in this build";
  return "subjects from libraries are not available in this build";
}

}  // namespace distgrad
