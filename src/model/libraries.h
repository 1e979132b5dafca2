// The subjects by name: what each library's backward rule is for each collective, as rows of data
// with their source. Torch-free, so that the driver can list them and skip what a subject does not
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
  std::string_view
      finding;  // the finding it stands for when it is not the truth, e.g. "identity-backward"
  std::string_view summary;
};

std::span<const BackwardRuleRow> backward_rules();

struct LibraryRow {
  std::string_view subject;
  CollectiveKind kind;
  std::string_view ops;   // comma-separated reduce ops, or "" for all (kinds without op: "")
  std::string_view rule;  // a backward rule's name, or "raises"
  std::string_view since =
      {};  // the first torch it was measured on, "2.15"; "": all. The first row that fits counts.
};

struct SubjectRow {
  std::string_view name;
  std::string_view how;     // "native" (reference), "dispatcher" (in_place), "rules"
  std::string_view source;  // e.g. "rule set after Spijkervet/SimCLR GatherLayer"
};

std::span<const SubjectRow> subjects();
std::span<const LibraryRow> library_rows();

// The rule a subject has for a collective; nullopt: not offered. `copy` and `slice` of a subject
// that has no row for them are the adjoint. For "reference" and "in_place": "native"/"dispatcher"
// for everything they offer. A mutant offers what "reference" does; which steps it gets wrong its
// text says (model/subject_text.h). `torch` is the version that runs it ("2.15.0"); where it is
// empty, the newest.
std::optional<std::string_view> rule_of(std::string_view subject, CollectiveKind kind, ReduceOp op,
                                        std::string_view torch = {});

}  // namespace distgrad
