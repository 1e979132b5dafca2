// Lists what a message holds of a program. Included by the codecs only.
#pragma once

#include <algorithm>
#include <array>

#include "model/layout_name.h"
#include "model/program.h"
#include "protocol/fields.h"

namespace distgrad {

// Names enumerators in the order of their values.
inline constexpr std::array<std::string_view, 3> kDistributions = {"integers", "normal", "uniform"};
inline constexpr std::array<std::string_view, 2> kSyncs = {"sum", "mean"};

template <class Enum, std::size_t N>
std::optional<Enum> enumerator_named(std::string_view name,
                                     const std::array<std::string_view, N>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

inline std::string_view message_name(RandomSpec::Kind kind) {
  return kDistributions[static_cast<std::size_t>(kind)];
}
inline auto message_named(std::string_view name, RandomSpec::Kind) {
  return enumerator_named<RandomSpec::Kind>(name, kDistributions);
}
inline std::string_view message_name(Input::Sync op) {
  return kSyncs[static_cast<std::size_t>(op)];
}
inline auto message_named(std::string_view name, Input::Sync) {
  return enumerator_named<Input::Sync>(name, kSyncs);
}
inline std::string_view message_name(Layout::Kind kind) { return layout_name(kind); }
inline auto message_named(std::string_view name, Layout::Kind) {
  return enumerator_named<Layout::Kind>(name, kLayoutNames);
}
inline std::string_view message_name(CollectiveKind kind) { return traits(kind).name; }
inline auto message_named(std::string_view name, CollectiveKind) { return collective_named(name); }
inline std::string_view message_name(ReduceOp op) { return name_of(op); }
inline auto message_named(std::string_view name, ReduceOp) { return reduce_op_named(name); }
inline std::string_view message_name(DType dtype) { return traits(dtype).name; }
inline auto message_named(std::string_view name, DType) { return dtype_named(name); }

void fields(auto& a, Like<Expression> auto& expression) {
  auto& [text, pointer] = expression;
  a("text", text);
  a("pointer", pointer);
}

void fields(auto& a, Like<Group> auto& group) {
  auto& [name, partition, is_mesh_axis] = group;
  a("name", name);
  a("partition", partition);
  a("is_mesh_axis", is_mesh_axis);
}

void fields(auto& a, Like<RandomSpec> auto& random) {
  auto& [shape, kind, low, high, seed] = random;
  a("shape", shape);
  a("kind", kind);
  a("low", low);
  a("high", high);
  a("seed", seed);
}

void fields(auto& a, Like<AxisLayout> auto& axis_layout) {
  auto& [axis, layout] = axis_layout;
  auto& [kind, dim] = layout;
  a("axis", axis);
  a("kind", kind);
  if (kind == Layout::Kind::kShard) a("dim", dim);
}

void fields(auto& a, Like<std::pair<std::string, Input::Sync>> auto& sync) {
  auto& [axis, op] = sync;
  a("axis", axis);
  a("op", op);
}

void fields(auto& a, Like<Input> auto& input) {
  auto& [name, pointer, value, requires_grad, layout, sync] = input;
  a("name", name);
  a("pointer", pointer);
  a.one_of({"value", "by_rank", "expr", "random"}, value);
  a.optional("requires_grad", requires_grad, true);
  a("layout", layout);
  a.optional("sync", sync);
}

void fields(auto& a, Like<CollectiveCall> auto& call) {
  auto& [kind, operand, group, op, factor, root, dim, splits, pairs] = call;
  a("kind", kind);
  a("operand", operand);
  a("group", group);
  a("op", op);
  a("factor", factor);
  a("root", root);
  a.optional("dim", dim);
  a.optional("splits", splits);
  a.optional("pairs", pairs);
}

void fields(auto& a, Like<CodeCall> auto& call) {
  auto& [code, arguments, simulate] = call;
  a("code", code);
  a("args", arguments);
  a("simulate", simulate);
}

void fields(auto& a, Like<Step> auto& step) {
  auto& [name, pointer, what] = step;
  a("name", name);
  a("pointer", pointer);
  a.one_of({"expr", "collective", "call"}, what);
}

void fields(auto& a, Like<SingleDevice> auto& single_device) {
  auto& [steps, loss] = single_device;
  a("steps", steps);
  a("loss", loss);
}

void fields(auto& a, Like<Program::Truth> auto& truth) {
  auto& [input, pointer, value] = truth;
  a("input", input);
  a("pointer", pointer);
  a.one_of({"value", "by_rank", "expr"}, value);
}

// Throws BadMessage for a rank that the program's world lacks.
inline void check_rank(int rank, int world_size) {
  if (rank < 0 || rank >= world_size)
    throw BadMessage("a rank is out of range: " + std::to_string(rank));
}

inline void check_ranks(const Program& program) {
  for (const Group& group : program.groups)
    for (const std::vector<int>& ranks : group.partition)
      for (const int rank : ranks) check_rank(rank, program.world_size);
  for (const Step& step : program.steps) {
    const CollectiveCall* call = step.collective();
    if (!call) continue;
    check_rank(call->root, program.world_size);
    for (const auto& [source, destination] : call->pairs) {
      check_rank(source, program.world_size);
      check_rank(destination, program.world_size);
    }
  }
}

template <class Archive>
void fields(Archive& a, Like<Program> auto& program) {
  auto& [world_size, dtype, groups, inputs, steps, loss, single_device, truth, is_widened] =
      program;
  a.integer("world_size", world_size, 1, kMostInt);
  a("dtype", dtype);
  a("groups", groups);
  a("inputs", inputs);
  a("steps", steps);
  a("loss", loss);
  a.optional("single_device", single_device);
  a.optional("truth", truth);
  a.optional("is_widened", is_widened, false);
  if constexpr (Archive::kReads) check_ranks(program);
}

}  // namespace distgrad
