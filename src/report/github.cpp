#include "report/github.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/visible_text.h"
#include "report/case_words.h"
#include "report/source_place.h"
#include "report/valid_text.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

struct Annotation {
  std::string file;  // empty: it is about no file
  int line = 0;
  std::string title;
  std::string message;
};

// Escapes what would end a line or, in a property, the property; the runner restores the text.
// Azure's runner takes a command in the middle of a line, too.
std::string escaped(std::string_view text, bool is_property) {
  std::string out;
  for (const char c : valid_text(without_commands(text, "::"))) {
    if (c == '%' || c == '\n' || (is_property && (c == ':' || c == ',')))
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out;
}

std::string line_of(const Annotation& a) {
  std::string out = "::error ";
  if (!a.file.empty()) out += fmt::format("file={},line={},", escaped(a.file, true), a.line);
  return out + "title=" + escaped(a.title, true) + "::" + escaped(a.message, false) + "\n";
}

Annotation annotation_of(const CaseResult& r, const FormatContext& context) {
  const SourcePlace place = place_of_case(r);
  const std::string advice = r.findings.empty() ? "" : r.findings.front().text + "\n";
  return {path_below(place.file, context.root), place.line, headline(r),
          advice + reported_alone(r, context)};
}

Annotation annotation_of(const InvalidFile& f, const FormatContext& context) {
  if (f.position.line == 0) return {"", 0, f.file + " cannot be used", problem_text(f)};
  return {path_below(f.file, context.root), f.position.line, "invalid scenario", problem_text(f)};
}

}  // namespace

// Sorts by exit code: broken cases, invalid files, cases that are not as expected.
std::string github_annotations(const Report& report, const FormatContext& context) {
  const std::vector<const CaseResult*> wrong = worst_first(report);
  const auto unexpected =
      std::find_if(wrong.begin(), wrong.end(), [](const CaseResult* r) { return !r->broken; });
  std::vector<Annotation> shown;
  const auto add = [&](const auto& what) {
    if (shown.size() < kMostAnnotations) shown.push_back(annotation_of(what, context));
  };
  for (auto r = wrong.begin(); r != unexpected; ++r) add(**r);
  for (const InvalidFile& f : report.invalid) add(f);
  for (auto r = unexpected; r != wrong.end(); ++r) add(**r);

  const std::size_t all = wrong.size() + report.invalid.size();
  if (all > shown.size())
    shown.back().message += fmt::format(
        "\n{} more are not shown as annotations: see the job's log.", all - shown.size());
  std::string out;
  for (const Annotation& a : shown) out += line_of(a);
  return out;
}

}  // namespace distgrad
