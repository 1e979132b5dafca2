// Reads the text of a subject: a name, Python code, an operator of a library, a subject for each of
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

// Describes what runs one collective, or all of them.
struct SubjectPart {
  enum class Code {
    kNone,     // a name of model/libraries.h, mutants, or no subject at all
    kPython,   // "python:FILE.py:NAME@MODE", "python:MODULE:NAME", "python:FILE.py",
               // "python:MODULE", "python:PLACE:NAME(ARGUMENTS)..."
    kLibrary,  // "library:FILE.so:NAMESPACE::OP"
  };
  std::string text;                      // as written, without "KIND="
  std::optional<CollectiveKind> serves;  // the KIND of "KIND=TEXT"; nullopt: all
  Code code = Code::kNone;
  std::string place;                // the file or module; the whole text if it is no code
  std::string name;                 // what is called there, with its call, if any; may be empty
  std::optional<std::string> mode;  // of code in Python; need not be one of kSubjectModes

  bool is_python() const { return code == Code::kPython; }
  bool is_file() const { return place.ends_with(".py"); }
  // Returns the code itself: "losses.py:Gather.apply", without the prefix and the mode.
  std::string called() const { return name.empty() ? place : place + ":" + name; }
  // True for distgrad's own collectives, in C++ or Python.
  bool is_reference() const { return code != Code::kLibrary && called() == "reference"; }
  bool is_in_place() const { return code != Code::kLibrary && called() == "in_place"; }
};

// Returns `text` with the brackets of calls and what is in them overwritten: "python:m:f(x)[0]"
// becomes "python:m:f______". Callers that cut a text at separators search here, since separators
// inside a call mean nothing.
std::string without_calls(std::string_view text);

// Returns the part of SubjectPart::called() after the place.
std::string name_in(std::string_view called);

// Reads a text without "KIND=". It accepts any text; scenario/subject_name.h knows which are
// subjects.
SubjectPart read_part(std::string_view text);

// Splits "all_gather=python:f.py:g+all_reduce=in_place" in the order written. A text of another
// form is one part that serves all. Never returns an empty list.
std::vector<SubjectPart> parts_of(std::string_view subject);

// Returns true if the text has the form "KIND=TEXT+KIND=TEXT...".
bool has_parts(std::string_view subject);

// Returns the part of `subject` that runs this collective, or "reference" if `subject` has parts
// for other collectives only.
std::string subject_for(std::string_view subject, CollectiveKind kind);

// Lists the modes that run a subject in Python, as in "python:f.py:g@checkpoint".
// src/python/distgrad/ranks/modes.py says what each means.
inline constexpr std::string_view kSubjectModes[] = {
    "checkpoint", "checkpoint-reentrant", "autocast", "async", "compile", "shared"};

// Returns `subject` with "@MODE" on the part that runs this collective.
std::string subject_in_mode(std::string_view subject, CollectiveKind kind, std::string_view mode);

// Describes one step whose backward is wrong on purpose. "mutant:STEP=WHAT+STEP=WHAT..." is
// `reference` except for such steps. It tests the diagnosis, and no user can name it.
struct Mutation {
  enum class Kind {
    kRule,     // "next_slice": the rule `name` of src/rank/rules
    kWithout,  // "without:2": drops the cotangent of world rank `number`
    kRoot,     // "root:1": uses the backward of the call with root `number`
    kGroup,    // "group:tp", "group:world": uses that of the call over group `name`
    kOrder,    // "order:sorted": uses that of the call over its group in the order `name`
               // (model/group_order.h)
    kStale,    // "stale:z": gives the operand what the backward of the earlier step `name` gives
    kLinear,   // "linear:7": a linear map drawn from the seed `number`, which is none of the rules
  };
  std::string step;
  Kind kind = Kind::kRule;
  std::string name;
  std::uint64_t number = 0;
};

bool is_mutant(std::string_view subject);
// Throws std::invalid_argument if the text is no mutant. Does not check that a rule exists.
std::vector<Mutation> mutations_of(std::string_view subject);

// Returns true if the subject needs ranks in Python.
bool is_python_subject(std::string_view subject);

// Returns true if ranks in Python offer the subject: code in Python, `reference` and `in_place`.
bool runs_in_python(std::string_view subject);

// Returns true if the subject is, or contains, code that is not distgrad's.
bool is_foreign_code(std::string_view subject);

// Returns true for `reference`, whose losses are weighted by the objective.
bool is_reference(std::string_view subject);

}  // namespace distgrad
