// Holds programs and gradients made by hand, for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "judge/assemble.h"
#include "model/run_result.h"

namespace distgrad::sample {

inline Array vector(std::vector<double> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Array({n}, std::move(values));
}

inline Array matrix(std::int64_t rows, std::int64_t columns, std::vector<double> values) {
  return Array({rows, columns}, std::move(values));
}

inline GradientByRank scalars(const std::vector<double>& values) {
  GradientByRank parts;
  for (const double v : values) parts.emplace_back(Array::scalar(v));
  return parts;
}

inline const std::vector<double> values_of(const Array& array) {
  return {array.values().begin(), array.values().end()};
}

// Lays the axes over the ranks in row-major order: the last varies fastest.
inline Program mesh(const std::vector<std::pair<std::string, int>>& axes) {
  Program program;
  program.world_size = 1;
  for (const auto& axis : axes) program.world_size *= axis.second;
  int inner = program.world_size;
  for (const auto& [name, size] : axes) {
    inner /= size;
    Group group{.name = name, .partition = {}, .is_mesh_axis = true};
    for (int rank = 0; rank < program.world_size; ++rank) {
      if ((rank / inner) % size != 0) continue;
      group.partition.emplace_back();
      for (int i = 0; i < size; ++i) group.partition.back().push_back(rank + i * inner);
    }
    program.groups.push_back(std::move(group));
  }
  return program;
}

inline Program world(int size) {
  Program program;
  program.world_size = size;
  return program;
}

inline Layout shard(int dim) { return {Layout::Kind::kShard, dim}; }
inline constexpr Layout kLocal = {Layout::Kind::kLocal, 0};
inline constexpr Layout kReplicate = {Layout::Kind::kReplicate, 0};
inline constexpr Layout kInvariant = {Layout::Kind::kInvariant, 0};

inline Input input(std::string name, std::vector<AxisLayout> layout) {
  Input result;
  result.name = std::move(name);
  result.value = Array::scalar(1);
  result.layout = std::move(layout);
  return result;
}

inline Input input(std::string name, Layout layout) {
  return input(std::move(name), {{"", layout}});
}

inline Step all_reduce(std::string name, ReduceOp op = ReduceOp::kSum, std::string group = "") {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  call.op = op;
  call.group = std::move(group);
  return {std::move(name), "", call};
}

}  // namespace distgrad::sample
