// What a subject's text says: a name, Python code, an operator of a library, a subject for each of
// some collectives, or mutants. Source: command-line contract, "A subject is".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/collective_kind.h"

namespace distgrad {

// What runs one collective, or all of them.
struct SubjectPart {
  enum class Code {
    kNone,     // a name of model/libraries.h, mutants, or what is no subject
    kPython,   // "python:FILE.py:NAME@MODE", "python:MODULE:NAME", "python:FILE.py",
               // "python:MODULE", "python:PLACE:NAME(ARGUMENTS)..."
    kLibrary,  // "library:FILE.so:NAMESPACE::OP"
  };
  std::string text;                      // as written, without "KIND="
  std::optional<CollectiveKind> serves;  // of "KIND=TEXT"; nullopt: all
  Code code = Code::kNone;
  std::string place;                // the file or module; all of the text where it is no code
  std::string name;                 // what is called there, or the call; may be empty
  std::optional<std::string> mode;  // of code in Python; it need not be one of kSubjectModes

  bool is_python() const { return code == Code::kPython; }
  bool is_file() const { return place.ends_with(".py"); }
  // The code's own words: "losses.py:Gather.apply", without what stands before and behind it.
  std::string called() const { return name.empty() ? place : place + ":" + name; }
  // distgrad's own collectives, in C++ or Python.
  bool is_reference() const { return code != Code::kLibrary && called() == "reference"; }
  bool is_in_place() const { return code != Code::kLibrary && called() == "in_place"; }
};

// `text` with what calls in it have in brackets overwritten, and the brackets: "python:m:f(x)[0]"
// is "python:m:f______". Who cuts a subject, or a text that has some, looks there for where: what
// parts subjects means nothing in a call.
std::string without_calls(std::string_view text);

// Of SubjectPart::called(): what stands behind the place.
std::string name_in(std::string_view called);

// Of a text without "KIND=". Each text is one; which are subjects, scenario/subject_name.h knows.
SubjectPart read_part(std::string_view text);

// "all_gather=python:f.py:g+all_reduce=in_place" in the order written; one part that serves all for
// what is not of this form. Never empty.
std::vector<SubjectPart> parts_of(std::string_view subject);

// Whether it is of that form.
bool has_parts(std::string_view subject);

// What of `subject` runs this collective; "reference" where a subject for other collectives leaves
// it to that.
std::string subject_for(std::string_view subject, CollectiveKind kind);

// How a subject in Python is run, as "python:f.py:g@checkpoint" says;
// src/python/distgrad/ranks/modes.py has what each means.
inline constexpr std::string_view kSubjectModes[] = {
    "checkpoint", "checkpoint-reentrant", "autocast", "async", "compile", "shared"};

// `subject` with "@MODE" for the part that runs this collective.
std::string subject_in_mode(std::string_view subject, CollectiveKind kind, std::string_view mode);

// One step whose backward is wrong on purpose. "mutant:STEP=WHAT+STEP=WHAT..." is `reference` but
// for such steps: a subject for tests of the diagnosis, which no user can name.
struct Mutation {
  enum class Kind {
    kRule,     // "next_slice": the rule `name` of src/rank/rules
    kWithout,  // "without:2": the cotangent of rank `number` of the world is dropped
    kRoot,     // "root:1": the backward of the call with root `number`
    kGroup,    // "group:tp", "group:world": that of the call over group `name`
    kOrder,    // "order:sorted": that of the call over its group in the order `name`
               // (model/group_order.h)
    kStale,    // "stale:z": the operand gets what the backward of the earlier step `name` gives
    kLinear,   // "linear:7": a linear map drawn from the seed `number` that is none of the rules
  };
  std::string step;
  Kind kind = Kind::kRule;
  std::string name;
  std::uint64_t number = 0;
};

bool is_mutant(std::string_view subject);
// Throws std::invalid_argument for what is no such text. A rule is not looked for.
std::vector<Mutation> mutations_of(std::string_view subject);

// Whether it needs ranks in Python.
bool is_python_subject(std::string_view subject);

// Whether ranks in Python have it: what is in Python, and `reference` and `in_place`.
bool runs_in_python(std::string_view subject);

// Whether it is, or has in it, code that is not distgrad's.
bool is_foreign_code(std::string_view subject);

// `reference`, whose losses are weighted by the objective.
bool is_reference(std::string_view subject);

}  // namespace distgrad
