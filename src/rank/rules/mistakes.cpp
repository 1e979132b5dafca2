#include "rank/rules/mistakes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "rank/collectives/common.h"
#include "rank/rules/applies_to.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;
using enum CollectiveKind;

JointValues with_cotangents(const JointValues& v, Tensors cotangents) {
  return {v.operands, v.outputs, std::move(cotangents)};
}

// --- What is summed
// ------------------------------------------------------------------------------------------------

// Returns the adjoint in which rank i counts only the cotangents of the ranks r with counts(i, r).
template <class Counts>
Tensors counted(const Call& call, const JointValues& v, const Counts& counts) {
  Tensors out;
  for (int i = 0; i < call.size; ++i) {
    Tensors kept;
    for (int r = 0; r < call.size; ++r)
      kept.push_back(counts(i, r) ? v.cotangents[r] : at::zeros_like(v.cotangents[r]));
    out.push_back(adjoint(call, with_cotangents(v, std::move(kept)))[i]);
  }
  return out;
}
Tensors own_part(const Call& call, const JointValues& v) {
  return counted(call, v, [](int i, int r) { return i == r; });
}
Tensors others_part(const Call& call, const JointValues& v) {
  return counted(call, v, [](int i, int r) { return i != r; });
}

Tensors reduced_twice(const Call& call, const JointValues& v) {
  return Tensors(call.size, at::stack(adjoint(call, v)).sum(0));
}

// --- Which slice
// ------------------------------------------------------------------------------------------------

int next(int rank, int size) { return (rank + 1) % size; }
int previous(int rank, int size) { return (rank + size - 1) % size; }
int mirrored(int rank, int size) { return size - 1 - rank; }
int first(int, int) { return 0; }

using Order = int (*)(int rank, int size);

template <Order order>
Tensors other_slice(const Call& call, const JointValues& v) {
  const Tensors right = adjoint(call, v);
  Tensors out;
  for (int r = 0; r < call.size; ++r) out.push_back(right[order(r, call.size)]);
  return out;
}

template <Order order>
Tensors other_cotangent(const Call& call, const JointValues& v) {
  Tensors moved;
  for (int r = 0; r < call.size; ++r) moved.push_back(v.cotangents[order(r, call.size)]);
  return adjoint(call, with_cotangents(v, std::move(moved)));
}

Tensors own_slices_summed(const Call& call, const JointValues& v) {
  return Tensors(call.size, at::stack(own_part(call, v)).sum(0));
}

Tensors first_place(const Call& call, const JointValues& v) {
  Tensors out;
  for (int r = 0; r < call.size; ++r) {
    const std::int64_t dim = dim_of(call, v.operands[r]);
    at::Tensor whole = at::zeros_like(v.operands[r], at::MemoryFormat::Contiguous);
    whole.narrow(dim, 0, v.cotangents[r].size(dim)).copy_(v.cotangents[r]);
    out.push_back(whole);
  }
  return out;
}

Tensors not_exchanged(const Call&, const JointValues& v) { return v.cotangents; }

Tensors sent_forward(const Call& call, const JointValues& v) {
  Tensors out;
  for (const at::Tensor& y : collective(call.spec->kind).simulate(call, v.cotangents))
    out.push_back(y.clone());
  return out;
}

// --- Ties and zeros
// ------------------------------------------------------------------------------------------------

// Holds the one reduced value and its cotangent, for all_reduce, reduce and reduce_scatter alike.
struct Reduced {
  at::Tensor cotangent;
  at::Tensor value;
};
Reduced reduced(const Call& call, const JointValues& v) {
  const at::Tensor value = reduction(call, v.operands);
  switch (call.spec->kind) {
    case kReduce:
      return {v.cotangents[call.spec->root], value};
    case kReduceScatter:
      return {at::cat(v.cotangents, dim_of(call, v.operands[0])), value};
    default:
      return {at::stack(v.cotangents).sum(0), value};
  }
}

Tensors all_to_each_tie(const Call& call, const JointValues& v) {
  const Reduced total = reduced(call, v);
  Tensors out;
  for (const at::Tensor& x : v.operands)
    out.push_back(at::where(x.eq(total.value), total.cotangent, at::zeros_like(x)));
  return out;
}

Tensors all_to_first_tie(const Call& call, const JointValues& v) {
  const Reduced total = reduced(call, v);
  at::Tensor taken = at::zeros_like(total.value).to(at::kBool);
  Tensors out;
  for (const at::Tensor& x : v.operands) {
    const at::Tensor holds = x.eq(total.value).logical_and(taken.logical_not());
    out.push_back(at::where(holds, total.cotangent, at::zeros_like(x)));
    taken = taken.logical_or(holds);
  }
  return out;
}

Tensors total_out_over_x(const Call& call, const JointValues& v) {
  const Reduced total = reduced(call, v);
  Tensors out;
  for (const at::Tensor& x : v.operands) out.push_back(total.cotangent * total.value / x);
  return out;
}
Tensors total_out_over_x_or_0(const Call& call, const JointValues& v) {
  Tensors out = total_out_over_x(call, v);
  for (int r = 0; r < call.size; ++r)
    out[r] = at::where(v.operands[r].eq(0), at::zeros_like(out[r]), out[r]);
  return out;
}

// --- Memory and dtype
// ------------------------------------------------------------------------------------------------

// Returns the elements in the order in which they lie in memory, as a kernel sees them that takes
// every tensor for contiguous. A tensor that overlaps itself, or has gaps, is returned unchanged,
// since what such a kernel would read is unpredictable.
at::Tensor as_in_memory(const at::Tensor& x) {
  return x.is_contiguous() || !x.is_non_overlapping_and_dense()
             ? x
             : x.as_strided(x.sizes(), at::empty(x.sizes()).strides());
}
void reads_cotangent_as_stored(at::Tensor&, at::Tensor& cotangent) {
  cotangent = as_in_memory(cotangent);
}
void reads_operand_as_stored(at::Tensor& operand, at::Tensor&) { operand = as_in_memory(operand); }
void reads_as_it_is(at::Tensor&, at::Tensor&) {}
template <at::ScalarType narrow>
at::Tensor rounded_to(const at::Tensor& x) {
  return x.to(narrow).to(x.scalar_type());
}
template <at::ScalarType narrow>
void reads_rounded(at::Tensor&, at::Tensor& cotangent) {
  cotangent = rounded_to<narrow>(cotangent);
}

at::Tensor as_given(const at::Tensor& given, const at::Tensor&) { return given; }
// Writes the result over the cotangent, so that whoever shares that memory sees it change.
at::Tensor written_over_cotangent(const at::Tensor& given, const at::Tensor& cotangent) {
  if (cotangent.sizes() == given.sizes() && cotangent.is_non_overlapping_and_dense())
    at::Tensor(cotangent).copy_(given);
  return given;
}
template <at::ScalarType narrow>
at::Tensor given_rounded(const at::Tensor& given, const at::Tensor&) {
  return rounded_to<narrow>(given);
}

// --- What each applies to

bool gathers(const CollectiveCall& c) { return traits(c.kind).joins(); }
bool sends(const CollectiveCall& c) { return c.kind == kSendRecv; }
bool exchanges(const CollectiveCall& c) { return sends(c) || traits(c.kind).exchanges(); }
bool multiplies(const CollectiveCall& c) { return reduces(c) && c.op == ReduceOp::kProduct; }
bool picks(const CollectiveCall& c) {
  return reduces(c) && (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax);
}

constexpr std::array kLocalMistakes = std::to_array<LocalMistake>({
    {"as_stored", anything, reads_cotangent_as_stored, as_given},
    {"operand_as_stored", reduces, reads_operand_as_stored, as_given},
    {"overwritten", anything, reads_as_it_is, written_over_cotangent},
    {"in_float32", anything, reads_rounded<at::kFloat>, given_rounded<at::kFloat>},
    {"in_float16", anything, reads_rounded<at::kHalf>, given_rounded<at::kHalf>},
    {"in_bfloat16", anything, reads_rounded<at::kBFloat16>, given_rounded<at::kBFloat16>},
});

template <std::size_t which>
Tensors on_all_ranks(const Call& call, const JointValues& v) {
  constexpr const LocalMistake& mistake = kLocalMistakes[which];
  JointValues read = v;
  for (int r = 0; r < call.size; ++r) mistake.before(read.operands[r], read.cotangents[r]);
  Tensors out = adjoint(call, read);
  for (int r = 0; r < call.size; ++r) out[r] = mistake.after(out[r], v.cotangents[r]);
  return out;
}
template <std::size_t which>
constexpr Rule as_rule = {kLocalMistakes[which].name, kLocalMistakes[which].applies,
                          on_all_ranks<which>};

constexpr std::array kMistakes = std::to_array<Rule>({
    {"own_part", communicates, own_part},
    {"others_part", communicates, others_part},
    {"reduced_twice", communicates, reduced_twice},
    {"next_slice", communicates, other_slice<next>},
    {"previous_slice", communicates, other_slice<previous>},
    {"mirrored_slice", communicates, other_slice<mirrored>},
    {"first_slice", gathers, other_slice<first>},
    {"own_slices_summed", gathers_to_all, own_slices_summed},
    {"next_cotangent", communicates, other_cotangent<next>},
    {"previous_cotangent", communicates, other_cotangent<previous>},
    {"mirrored_cotangent", communicates, other_cotangent<mirrored>},
    {"first_place", slices, first_place},
    {"not_exchanged", exchanges, not_exchanged},
    {"sent_forward", sends, sent_forward},
    {"all_to_each_tie", picks, all_to_each_tie},
    {"all_to_first_tie", picks, all_to_first_tie},
    {"total_out_over_x", multiplies, total_out_over_x},
    {"total_out_over_x_or_0", multiplies, total_out_over_x_or_0},
    as_rule<0>,
    as_rule<1>,
    as_rule<2>,
    as_rule<3>,
    as_rule<4>,
    as_rule<5>,
});

}  // namespace

std::span<const Rule> mistakes() { return kMistakes; }

const LocalMistake* local_mistake_named(std::string_view name) {
  const auto* found = std::ranges::find(kLocalMistakes, name, &LocalMistake::name);
  return found == kLocalMistakes.end() ? nullptr : found;
}

}  // namespace distgrad
