// Lists the subjects by name, and each library's backward rule for each collective, with the source
// of each. It is free of torch, so that the driver can list subjects and skip what one does not
// offer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/collective_kind.h"

namespace distgrad {

struct BackwardRuleRow {
  std::string_view name;  // "adjoint", "identity", ...
  // Names the finding that the rule stands for when it is not the truth, e.g. "identity-backward".
  std::string_view finding;
  std::string_view summary;
};

std::span<const BackwardRuleRow> backward_rules();

struct LibraryRow {
  std::string_view subject;
  CollectiveKind kind;
  std::string_view ops;   // comma-separated reduce ops, or "" for all (kinds without op: "")
  std::string_view rule;  // a backward rule's name, or "raises"
  // Names the first torch that it was measured on, "2.15"; "" means all. The first row that fits
  // counts.
  std::string_view since = {};
};

struct SubjectRow {
  std::string_view name;
  std::string_view how;     // "native" (reference), "dispatcher" (in_place), "rules"
  std::string_view source;  // e.g. "rule set after Spijkervet/SimCLR GatherLayer"
};

std::span<const SubjectRow> subjects();
std::span<const LibraryRow> library_rows();

// Returns the rule that a subject has for a collective, or nullopt if the subject does not offer
// it. `copy` and `slice` of a subject without a row for them are the adjoint. "reference" and
// "in_place" return "native" and "dispatcher" for everything they offer. A mutant offers what
// "reference" does; its text says which steps are wrong (model/subject_text.h). `torch` is the
// version that runs the subject ("2.15.0"); empty means the newest.
std::optional<std::string_view> rule_of(std::string_view subject, CollectiveKind kind, ReduceOp op,
                                        std::string_view torch = {});

}  // namespace distgrad
