#include "fuzz/choices.h"

#include <algorithm>

#include "model/libraries.h"
#include "model/subject_text.h"

namespace distgrad::fuzz {
namespace {

std::size_t ops_of(const CollectiveTraits& kind) {
  return kind.takes_op ? kReduceOpNames.size() : 1;
}

bool has_row(std::string_view subject, CollectiveKind kind) {
  const auto rows = library_rows();
  return std::any_of(rows.begin(), rows.end(), [&](const LibraryRow& row) {
    return row.subject == subject && row.kind == kind;
  });
}

// If a library has no row for `copy` and `slice`, they are the adjoint, which is not its own code.
bool is_of_its_own(std::string_view subject, CollectiveKind kind) {
  if (traits(kind).communicates) return true;
  const auto known = subjects();
  const bool is_library = std::any_of(known.begin(), known.end(), [&](const SubjectRow& row) {
    return row.name == subject && row.how == "rules";
  });
  return !is_library || has_row(subject, kind);
}

Offer offer_of(const std::string& subject, const CollectiveTraits& kind) {
  Offer offer;
  for (std::size_t op = 0; op < ops_of(kind); ++op) {
    const auto rule = rule_of(subject, kind.kind, static_cast<ReduceOp>(op));
    offer.ops[op] = is_foreign_code(subject) ||
                    (rule && *rule != "raises" && is_of_its_own(subject, kind.kind));
  }
  return offer;
}

}  // namespace

Offers all_offers() { return offers_of("reference"); }

Offers offers_of(const std::string& subject) {
  const std::vector<SubjectPart> parts = parts_of(subject);
  Offers offers;
  for (const CollectiveTraits& kind : kCollectives) {
    const bool is_served = std::ranges::any_of(parts, [&](const SubjectPart& part) {
      return part.serves.value_or(kind.kind) == kind.kind;
    });
    if (is_served || kind.kind == CollectiveKind::kAllReduce)
      offers[static_cast<std::size_t>(kind.kind)] = offer_of(subject_for(subject, kind.kind), kind);
  }
  return offers;
}

Choices default_choices() {
  Choices choices;
  choices.world_sizes = {1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 5, 6};
  choices.dtypes = {DType::kFloat64,  DType::kFloat64, DType::kFloat64, DType::kFloat64,
                    DType::kFloat64,  DType::kFloat32, DType::kFloat32, DType::kFloat32,
                    DType::kBFloat16, DType::kFloat16};
  choices.objectives = {"sum", "sum", "sum", "mean", "mean", "replicated", "rank", "axes", "axes"};
  return choices;
}

}  // namespace distgrad::fuzz
