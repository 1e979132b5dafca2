#include "judge/call_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "judge/arithmetic_findings.h"
#include "judge/closeness.h"
#include "judge/measured_field.h"
#include "judge/names.h"
#include "judge/other_calls.h"
#include "judge/phrases.h"
#include "model/ranks_text.h"

namespace distgrad {
namespace {

// Holds what is said of a wrong backward.
struct BackwardFinding {
  FindingName finding;
  std::string happened;  // follows "the backward of all_reduce "
  std::string_view right_if, right_objective;
  std::string_view remedy;
  FindingName also = {};
  std::vector<int> ranks = {};  // empty: those on which it gave a wrong gradient
};

std::optional<BackwardFinding> first_that_holds(std::span<const WrongBackward> names,
                                                const ComparedMaps& maps) {
  for (const WrongBackward& name : names) {
    std::string happened = name.happened(maps);
    if (happened.empty()) continue;
    return BackwardFinding{name.finding,
                           std::move(happened),
                           name.right_if,
                           name.right_objective,
                           name.remedy,
                           name.also,
                           name.ranks ? name.ranks(maps) : std::vector<int>()};
  }
  return std::nullopt;
}

bool is_response_of(const Measurement& m, const Responses& other) {
  for (std::size_t k = 0; k < m.cotangents.size(); ++k)
    for (std::size_t r = 0; r < m.world_size(); ++r) {
      const double room = resolution(m, k, r);
      if (!difference(m.measured.values[k][r], other.values[k][r], [&](std::size_t) {
             return room;
           }).equal)
        return false;
    }
  return true;
}

std::optional<BackwardFinding> another_call(Machine& machine, const Measurement& m) {
  for (OtherCall& other : other_calls(*m.program, m.call())) {
    const auto responses =
        right_responses(machine, *m.program, *m.seen, other.call, other.groups, m.cotangents);
    if (responses && is_response_of(m, *responses))
      return BackwardFinding{other.finding, std::move(other.happened), "", "", other.remedy};
  }
  return std::nullopt;
}

bool has_nan(const Measurement& m) {
  for (std::size_t k = 0; k < m.cotangents.size(); ++k)
    for (std::size_t r = 0; r < m.world_size(); ++r)
      for (std::size_t e = 0; e < m.measured.values[k][r].size(); ++e)
        if (std::isnan(m.measured.values[k][r][e]) && std::isfinite(m.right.values[k][r][e]))
          return true;
  return false;
}

const BackwardFinding kUnwritten = {
    "stale-or-aliased",
    "gave NaN where a number is right. New memory is filled with NaN in these runs: a buffer is "
    "read that was never written, or a NaN is computed, as 0/0 is.",
    "", "", "Fill the buffer, or wait for what fills it, before it is read."};

// Returns true if the columns are right, but not those of joint cotangents or of more bits.
bool has_right_columns(const Measurement& m) {
  for (std::size_t k = 0; k < m.probes.size(); ++k)
    for (std::size_t r = 0; r < m.world_size(); ++r)
      if (!is_right(m, k, r)) return false;
  return true;
}

bool gave_none_where_wrong(const CallOnRanks& call, const CallJudgement& judgement) {
  return std::all_of(judgement.wrong_ranks.begin(), judgement.wrong_ranks.end(),
                     [&](int r) { return !call.given[static_cast<std::size_t>(r)]; });
}

BackwardFinding gives_none(const Evidence& evidence, const CallJudgement& judgement) {
  return {"no-gradient",
          fmt::format("gave its operand no gradient (None) {}.",
                      on_ranks(judgement.wrong_ranks, evidence.program().world_size)),
          "", "",
          "Use a differentiable collective: a plain torch.distributed call into a new tensor is "
          "cut off from the graph. Look for a detach, or a backward that returns None."};
}

BackwardFinding named(Machine& machine, Measurement& m, const ComparedMaps& maps) {
  using Kind = Measurement::Kind;
  if (m.kind == Kind::kNotRepeatable)
    return {
        "nondeterministic", "gives another answer each time: " + m.shown + ".", "", "",
        "Look for memory that is read before it is written or while a collective still writes it "
        "(a wait() that is missing), for random numbers, and for an order that is left to chance."};
  if (m.kind == Kind::kStateful)
    return {"stale-or-aliased", "depends on the calls before it: " + m.shown + ".", "", "",
            "Look for what is kept from one call to the next: a buffer, a counter, a cache."};
  if (m.kind == Kind::kNotLinear || has_right_columns(m)) {
    if (m.shown.empty()) m.shown = "some cotangents are answered rightly and others are not";
    return *first_that_holds(nonlinear_names(), maps);
  }
  if (auto said = first_that_holds(special_names(), maps)) return *said;
  if (auto said = another_call(machine, m)) return *said;
  if (auto said = first_that_holds(general_names(), maps)) return *said;
  if (has_nan(m)) return kUnwritten;
  return {"other-backward", "matches no known mistake.", "", "",
          "Compare it with the right one, term by term."};
}

std::string right_if(const Evidence& evidence, const BackwardFinding& said) {
  if (said.right_if.empty()) return "";
  const std::vector<std::string> satisfied = satisfied_objectives(evidence);
  const bool is_satisfied =
      std::find(satisfied.begin(), satisfied.end(), said.right_objective) != satisfied.end();
  return fmt::format(" Right if {}{}.", said.right_if,
                     is_satisfied ? fmt::format(" (objective \"{}\")", said.right_objective) : "");
}

Finding finding_of(const Evidence& evidence, const CallOnRanks& call,
                   const CallJudgement& judgement, const BackwardFinding& said,
                   const std::optional<Scaling>& scaling) {
  Finding finding;
  finding.rule = said.finding;
  finding.collective = std::string(traits(call.call().kind).name);
  finding.step = call.name();
  finding.ranks = said.ranks.empty() ? judgement.wrong_ranks : said.ranks;
  if (scaling) finding.factor = scaling->common;
  finding.text =
      fmt::format("{}: the backward of {} {}{} {}", how_they_differ(evidence, scaling),
                  finding.collective, said.happened, right_if(evidence, said), said.remedy);
  return finding;
}

// --- Right by itself, wrong where it stands ---

bool is_right_as(Machine& machine, const Evidence& evidence, const CallOnRanks& call,
                 MemoryLayout layout) {
  const Joint cotangent = arrived(call);
  const auto seen = measured_responses(machine, evidence.program(), call, {cotangent}, layout);
  const auto right = right_responses(machine, evidence.program(), call, call.call(),
                                     evidence.program().groups, {cotangent});
  if (!seen || !right) return true;
  for (std::size_t r = 0; r < right->values[0].size(); ++r) {
    const auto allowed = [&](std::size_t e) {
      return 2 * right->bounds[0][r][e] +
             64 * unit_roundoff(evidence.program().dtype) * largest_magnitude(right->values[0][r]);
    };
    if (!difference(seen->values[0][r], right->values[0][r], allowed).equal) return false;
  }
  return true;
}

// Finds another call whose backward gave its operand exactly the same.
const CallOnRanks* one_that_gave_the_same(const CallOnRanks& call,
                                          const std::vector<CallOnRanks>& others) {
  for (const CallOnRanks& other : others) {
    if (&other == &call) continue;
    bool is_same = true;
    for (std::size_t r = 0; r < call.given.size() && is_same; ++r)
      is_same = call.given[r] && other.given[r] &&
                call.given[r]->shape() == other.given[r]->shape() &&
                std::equal(call.given[r]->values().begin(), call.given[r]->values().end(),
                           other.given[r]->values().begin());
    if (is_same) return &other;
  }
  return nullptr;
}

bool is_contiguous(const Strides& strides, const Shape& shape) {
  std::int64_t next = 1;
  for (std::size_t d = std::min(strides.size(), shape.size()); d-- > 0; next *= shape[d])
    if (shape[d] != 1 && strides[d] != next) return false;
  return true;
}

// Returns " on rank 0", or nothing if it is so on every rank.
std::string where_not_contiguous(const CallOnRanks& call, bool is_cotangent) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < call.operands.size(); ++r) {
    const Array* array = &call.operands[r];
    if (is_cotangent) array = call.cotangents[r] ? &*call.cotangents[r] : nullptr;
    const Strides& strides = is_cotangent ? call.cotangent_strides[r] : call.operand_strides[r];
    if (array && !is_contiguous(strides, array->shape())) ranks.push_back(static_cast<int>(r));
  }
  return ranks.empty() || ranks.size() == call.operands.size() ? "" : " on " + ranks_text(ranks);
}

constexpr std::string_view kMakeCotangentContiguous =
    "Collectives take tensors in the order of their memory: call .contiguous() on the cotangent, "
    "and go on with what that returns, which is a copy.";
constexpr std::string_view kMakeOperandContiguous =
    "Collectives take tensors in the order of their memory: call .contiguous() on the operand, "
    "and go on with what that returns, which is a copy.";

constexpr std::string_view kLookForAClip =
    "Look for a clip, a threshold or a comparison in that backward.";

BackwardFinding by_its_place(Machine& machine, const Evidence& evidence, const CallOnRanks& call,
                             const std::vector<CallOnRanks>& others) {
  if (!is_right_as(machine, evidence, call, MemoryLayout::kContiguous))
    return {"other-backward",
            "is not linear in the cotangents: it is right for those that it was measured with, and "
            "wrong for the one it gets here.",
            "", "", kLookForAClip};
  if (!is_right_as(machine, evidence, call, MemoryLayout::kAsSeen)) {
    const bool is_cotangent = !is_right_as(machine, evidence, call, MemoryLayout::kCotangentAsSeen);
    const std::string_view what = is_cotangent ? "cotangent" : "operand";
    return {
        "contiguity",
        fmt::format("is right for a contiguous {0}, and wrong for the one it gets here, which is "
                    "not contiguous{1}.",
                    what, where_not_contiguous(call, is_cotangent)),
        "", "", is_cotangent ? kMakeCotangentContiguous : kMakeOperandContiguous};
  }
  if (const CallOnRanks* other = one_that_gave_the_same(call, others))
    return {
        "stale-or-aliased",
        fmt::format("gave its operand what the backward of step {} gives that one's, as where "
                    "both write into one buffer.",
                    other->name()),
        "", "",
        "Give every call a buffer of its own, or clone what is returned from one that is kept."};
  return {
      "stale-or-aliased",
      "is right when the call is made by itself, with the same operand and cotangent, and wrong "
      "in this program: it depends on what runs before or beside it.",
      "", "",
      "Look for memory that two calls share and for what is kept from one call to the next."};
}

Finding could_not_be_measured(const Evidence& evidence, const CallOnRanks& call,
                              const CallJudgement& judgement,
                              const std::optional<Scaling>& scaling) {
  return finding_of(evidence, call, judgement,
                    {"unexplained",
                     "gave its operand something else than is right for the cotangents that "
                     "arrived, but could not be driven by itself to measure it.",
                     "", "", "Look at that backward."},
                    scaling);
}

}  // namespace

std::optional<MeasuredCall> measured_call(Machine& machine, const Program& program,
                                          const std::string& step) {
  const auto run = machine.observe();
  if (!run || run->error) return std::nullopt;
  for (const CallOnRanks& call : calls_on_ranks(program, *run)) {
    if (call.name() != step) continue;
    auto m = measured_by_element(machine, program, call);
    if (!m) m = measured(machine, program, call);
    if (!m) return std::nullopt;
    return MeasuredCall{is_right(*m),
                        measured_field(machine, *m, blocks_of_measured(*m), blocks_of_right(*m))};
  }
  return std::nullopt;
}

std::vector<Finding> call_findings(Machine& machine, const Evidence& evidence,
                                   const CallOnRanks& call, const CallJudgement& judgement,
                                   const std::vector<CallOnRanks>& others,
                                   const std::optional<Scaling>& scaling) {
  auto m = measured(machine, evidence.program(), call);
  if (!m) return {could_not_be_measured(evidence, call, judgement, scaling)};
  if (is_right(*m))
    return {finding_of(evidence, call, judgement, by_its_place(machine, evidence, call, others),
                       scaling)};
  Blocks seen = blocks_of_measured(*m);
  if (m->kind == Measurement::Kind::kLinear && !m->is_basis && !seen.is_described())
    if (auto by_element = measured_by_element(machine, evidence.program(), call)) {
      m = std::move(by_element);
      seen = blocks_of_measured(*m);
    }
  const Blocks right = blocks_of_right(*m);
  const BackwardFinding said = gave_none_where_wrong(call, judgement)
                                   ? gives_none(evidence, judgement)
                                   : named(machine, *m, {*m, seen, right});
  Finding finding = finding_of(evidence, call, judgement, said, scaling);
  finding.measured = measured_field(machine, *m, seen, right);
  std::vector<Finding> findings = {std::move(finding)};
  if (!said.also.empty()) {
    findings.push_back(findings.front());
    findings.back().rule = said.also;
  }
  return findings;
}

}  // namespace distgrad
