#include "scenario/subject_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/did_you_mean.h"
#include "model/collective_kind.h"
#include "model/libraries.h"
#include "model/subject_text.h"
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

// Finds "KINB=" at the start of "KINB=SUBJECT": a word and '=' that name no collective.
std::string_view misspelt_kind(std::string_view subject) {
  const std::size_t equals = subject.find('=');
  if (equals == std::string_view::npos ||
      subject.substr(0, equals).find_first_of(":/.") != std::string_view::npos)
    return {};
  return subject.substr(0, equals);
}

std::string problem_with_part(const SubjectPart& part);

std::string problem_with_parts(std::string_view subject) {
  std::set<CollectiveKind> seen;
  for (const SubjectPart& part : parts_of(subject)) {
    if (!seen.insert(*part.serves).second)
      return fmt::format("{} is given twice in {}", traits(*part.serves).name, in_quotes(subject));
    if (has_parts(part.text)) return "one KIND= is enough in " + in_quotes(subject);
    if (std::string why = problem_with_part(part); !why.empty()) return why;
    // Ranks in Python have no rule sets.
    if (is_python_subject(subject) && is_built_in(part.text) && !part.is_reference() &&
        !part.is_in_place())
      return fmt::format(
          "beside code in Python a collective is \"reference\" or \"in_place\", not {}",
          in_quotes(part.text));
  }
  return {};
}

std::string problem_with_mode(std::string_view mode) {
  const std::vector<std::string> known(std::begin(kSubjectModes), std::end(kSubjectModes));
  if (std::find(known.begin(), known.end(), mode) != known.end()) return {};
  const std::string hint = did_you_mean(mode, known);
  return fmt::format("unknown mode {} after '@'{}", in_quotes(mode),
                     hint.empty() ? fmt::format("; it is {}", fmt::join(known, ", ")) : hint);
}

std::string problem_with_python(const SubjectPart& part) {
  if (part.mode)
    if (std::string why = problem_with_mode(*part.mode); !why.empty()) return why;
  const std::string target = part.called();
  if (target.empty() || target.front() == ':' || target.back() == ':')
    return "a subject in Python is python:MODULE, python:MODULE:NAME or python:FILE.py:NAME";
  return {};
}

std::string problem_with_library(const SubjectPart& part) {
  const std::size_t scope = part.name.find("::");
  if (part.place.empty() || scope == part.name.npos || scope == 0 || scope + 2 == part.name.size())
    return "an operator of a library is library:FILE.so:NAMESPACE::OP";
  if (part.mode && *part.mode != "shared")
    return fmt::format("an operator of a library has the mode shared alone, and not {}",
                       in_quotes(*part.mode));
  return {};
}

// Suggests the full form to somebody who leaves out what marks code: "losses.py",
// "torch.distributed", "ops.so:mine::all_reduce".
std::string what_code_is_called(std::string_view subject) {
  const std::string_view file = subject.substr(0, subject.find(':'));
  const auto meant = [&](const std::string& text) {
    return "; did you mean " + in_quotes(text, kLongestPath) + "?";
  };
  if (file.ends_with(".py")) return meant("python:" + std::string(subject));
  if (file.ends_with(".so")) return meant("library:" + std::string(subject));
  if (file.ends_with(".json")) return "; `distgrad run` takes scenario files";
  if (file == "torch" || file == "torch.nn" || file == "torch.distributed.nn")
    return meant("python:torch.distributed.nn.functional");
  const bool is_dotted = file.find('.') != file.npos && file.find('/') == file.npos;
  return is_dotted ? meant("python:" + std::string(subject)) : "";
}

// Reports a missing file. To suggest python:losses.py for a file that is not there would help
// nobody.
std::string missing_file(std::string_view subject) {
  const std::string file(subject.substr(0, subject.find(':')));
  const bool is_library = file.ends_with(".so");
  std::error_code ignored;
  if (!(is_library || file.ends_with(".py")) || std::filesystem::exists(file, ignored)) return {};
  return fmt::format(
      "there is no file {} (code is {})", in_quotes(file, kLongestPath),
      is_library ? "library:FILE.so:NAMESPACE::OP" : "python:FILE.py:NAME or python:MODULE");
}

std::string problem_with_part(const SubjectPart& part) {
  if (part.code == SubjectPart::Code::kPython) return problem_with_python(part);
  if (part.code == SubjectPart::Code::kLibrary) return problem_with_library(part);
  const std::string_view subject = part.text;
  if (is_built_in(subject)) return {};
  if (is_built_in(subject.substr(0, subject.find('@'))))
    return fmt::format(
        "{}: only a subject in Python has a mode; python:reference and python:in_place are in "
        "Python, too",
        in_quotes(subject));
  if (const std::string why = missing_file(subject); !why.empty()) return why;
  std::string hint = what_code_is_called(subject);
  if (hint.empty()) hint = did_you_mean(subject, built_in_names());
  if (hint.empty())
    hint = "; `distgrad list subjects` shows all; code is python:FILE.py or python:MODULE";
  return "unknown subject " + in_quotes(subject) + hint;
}

// Steps and rules that the program does not have are found when it runs.
std::string problem_with_mutant(std::string_view subject) {
  try {
    mutations_of(subject);
    return {};
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
}

}  // namespace

std::string problem_with_subject(std::string_view subject) {
  if (subject.empty()) return "the subject's name is empty";
  if (is_mutant(subject)) return problem_with_mutant(subject);
  if (has_parts(subject)) return problem_with_parts(subject);
  if (const std::string_view kind = misspelt_kind(subject); !kind.empty()) {
    std::vector<std::string> kinds;
    for (const CollectiveTraits& t : kCollectives) kinds.emplace_back(t.name);
    return "unknown collective " + in_quotes(kind) + " before '='" + did_you_mean(kind, kinds);
  }
  return problem_with_part(read_part(subject));
}

}  // namespace distgrad
