#include "audit/audit_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "model/libraries.h"
#include "model/subject_text.h"

namespace distgrad {
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A subject without a row for copy or slice has the adjoint, which is not its own code.
bool offers_of_its_own(const std::string& subject, CollectiveKind kind) {
  if (!enters_parallel_region(kind) || is_reference(subject)) return true;
  const auto rows = library_rows();
  return std::any_of(rows.begin(), rows.end(), [&](const LibraryRow& row) {
    return row.subject == subject && row.kind == kind;
  });
}

std::vector<CollectiveKind> asked_kinds(const AuditOptions& options) {
  std::vector<CollectiveKind> kinds;
  for (const std::string& name : options.collectives) kinds.push_back(*collective_named(name));
  return kinds;
}

// Collects the plan's rows.
class Planner {
 public:
  Planner(const AuditOptions& options, Interpreters& interpreters,
          const WhileImporting& while_importing)
      : options_(options),
        asked_(asked_kinds(options)),
        interpreters_(interpreters),
        while_importing_(while_importing) {}

  AuditPlan make() {
    const std::vector<SubjectPart> parts = parts_of(options_.subject);
    for (const CollectiveKind kind : asked_)
      if (!has_part(parts, kind))
        throw UserError(fmt::format("audit: --collective {}: {} runs other collectives",
                                    traits(kind).name, options_.subject));
    for (const SubjectPart& part : parts) {
      if (!part.serves)
        add_part(part, asked_);
      else if (asked_.empty() || is_asked(*part.serves))
        add_part(part, {*part.serves});
    }
    if (plan_.rows.empty() && !plan_.unusable.empty()) throw UserError(plan_.unusable.front());
    return std::move(plan_);
  }

 private:
  static bool has_part(const std::vector<SubjectPart>& parts, CollectiveKind kind) {
    return std::ranges::any_of(
        parts, [&](const SubjectPart& p) { return p.serves.value_or(kind) == kind; });
  }

  bool is_asked(CollectiveKind kind) const {
    return std::find(asked_.begin(), asked_.end(), kind) != asked_.end();
  }

  // `kinds` restricts the collectives; empty means all that it has.
  void add_part(const SubjectPart& part, const std::vector<CollectiveKind>& kinds) {
    if (part.code == SubjectPart::Code::kLibrary && kinds.empty())  // its name may say which it is
      if (const auto kind = collective_named(part.name.substr(part.name.rfind(':') + 1)))
        return add_whole(part.text, {*kind});
    const bool is_one = kinds.size() == 1 && names_a_function(part);
    if (!part.is_python() || is_one || part.is_reference() || part.is_in_place())
      return add_whole(part.text, kinds);
    const SubjectFunctions found =
        functions_of(part, kinds, interpreters_.find_for_ranks(options_.python), while_importing_);
    if (found.is_built_in) return add_whole(part.text, kinds);
    for (const SubjectFunction& f : found.functions) {
      if (!kinds.empty() && std::find(kinds.begin(), kinds.end(), f.kind) == kinds.end()) continue;
      if (f.problem.empty())
        add(f.kind, f.subject);
      else
        plan_.unusable.push_back(f.problem);
    }
    for (const std::string& name : found.unnamed)
      if (kinds.empty())
        plan_.unusable.push_back(
            name + ": its name does not say which collective it is; KIND=python:" + name + " does");
    if (!names_a_function(part)) note_lacking(found, kinds);
  }

  void note_lacking(const SubjectFunctions& found, const std::vector<CollectiveKind>& kinds) {
    for (const CollectiveTraits& kind : kCollectives) {
      const bool has = std::any_of(found.functions.begin(), found.functions.end(),
                                   [&](const SubjectFunction& f) { return f.kind == kind.kind; });
      const bool is_wanted = kinds.empty()
                                 ? !enters_parallel_region(kind.kind)
                                 : std::find(kinds.begin(), kinds.end(), kind.kind) != kinds.end();
      if (!has && is_wanted) plan_.lacking.emplace_back(kind.name);
      if (!has && kinds.empty() && enters_parallel_region(kind.kind))
        plan_.not_asked.emplace_back(kind.name);
    }
  }

  // Adds a part that runs all collectives under one name.
  void add_whole(const std::string& part, const std::vector<CollectiveKind>& kinds) {
    for (const CollectiveTraits& kind : kCollectives) {
      const bool is_wanted = kinds.empty()
                                 ? offers_of_its_own(part, kind.kind)
                                 : std::find(kinds.begin(), kinds.end(), kind.kind) != kinds.end();
      if (is_wanted)
        add(kind.kind, part);
      else if (kinds.empty())
        plan_.not_asked.emplace_back(kind.name);
    }
  }

  void add(CollectiveKind kind, const std::string& subject) {
    const int ops = traits(kind).takes_op ? static_cast<int>(kReduceOpNames.size()) : 1;
    for (int i = 0; i < ops; ++i) {
      const auto op = static_cast<ReduceOp>(i);
      if (ops > 1 && !options_.ops.empty() && !contains(options_.ops, name_of(op))) continue;
      plan_.rows.push_back(
          {kind, op, subject, read_part(subject).called(), trials(kind, op, subject)});
    }
  }

  // Leaves modes out: rule sets and libraries know no checkpoint, autocast and so on, and a subject
  // in one mode takes no other.
  std::vector<Trial> trials(CollectiveKind kind, ReduceOp op, const std::string& subject) const {
    const SubjectPart part = read_part(subject);
    const bool is_code = part.is_python();
    const auto has_mode = [&](const std::string& mode) {
      return !part.mode && (is_code || (mode == "shared" && is_foreign_code(subject)));
    };
    BatteryOptions battery_options{options_.aspects, options_.objective, options_.world_size};
    std::vector<Aspect> tried = options_.aspects;
    if (!is_code) std::erase_if(tried, [](Aspect aspect) { return row_of(aspect).of_code; });
    battery_options.requested = tried;
    std::vector<Trial> trials = battery(kind, op, battery_options);
    std::erase_if(trials, [&](const Trial& t) {
      return (!t.mode.empty() && !has_mode(t.mode)) ||
             contains(options_.without, row_of(t.aspect).name) ||
             contains(options_.without, t.program);
    });
    return trials;
  }

  const AuditOptions& options_;
  std::vector<CollectiveKind> asked_;
  Interpreters& interpreters_;
  const WhileImporting& while_importing_;
  AuditPlan plan_;
};

}  // namespace

AuditPlan plan_of(const AuditOptions& options, Interpreters& interpreters,
                  const WhileImporting& while_importing) {
  return Planner(options, interpreters, while_importing).make();
}

std::vector<std::string> parts_of_an_audit() {
  std::vector<std::string> names;
  std::vector<Aspect> all;
  for (std::size_t a = 0; a < kAspectCount; ++a) {
    names.emplace_back(aspects()[a].name);
    if (aspects()[a].on_request) all.push_back(static_cast<Aspect>(a));
  }
  std::set<std::string> programs;
  for (const CollectiveTraits& kind : kCollectives)
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin})
      for (const Trial& trial : battery(kind.kind, op, {.requested = all}))
        programs.insert(trial.program);
  names.insert(names.end(), programs.begin(), programs.end());
  return names;
}

}  // namespace distgrad
