// Fakes, for tests, one collective call of N ranks whose backward is any function of the joint
// cotangents that a test gives, and a machine that answers for it. Another such function is right.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "judge/call_findings.h"
#include "judge/measured_field.h"
#include "judge/measurement.h"
#include "judge/names.h"

namespace distgrad::sample {

using Backward = std::function<Joint(const Joint& cotangents)>;

class MatrixWorld : public Machine {
 public:
  // Gives each rank's operand and output these shapes, and operands the values `value(rank,
  // element)`.
  MatrixWorld(
      int ranks, CollectiveCall call, Shape operand, Shape output, Backward right,
      const std::function<double(int, int)>& value = [](int r, int e) { return r + e + 1.0; })
      : right_(std::move(right)) {
    program.world_size = ranks;
    program.steps = {{"y", "", std::move(call)}};
    seen.step = &program.steps[0];
    for (int r = 0; r < ranks; ++r) {
      std::vector<double> values;
      for (int e = 0; e < element_count(operand); ++e) values.push_back(value(r, e));
      seen.operands.emplace_back(operand, std::move(values));
      seen.outputs.push_back(output);
      seen.operand_strides.emplace_back();
      seen.cotangent_strides.emplace_back();
      seen.cotangents.emplace_back();
      seen.given.emplace_back();
      seen.cotangents_after.emplace_back();
    }
  }

  Simulation simulate(const SimulateRequest& request) override {
    ++simulations;
    Simulation s;
    const auto& call = *request.program.steps[0].collective();
    if (call.group != program.steps[0].collective()->group ||
        call.root != program.steps[0].collective()->root) {
      s.invalid = InvalidProgram{"", "another call is not simulated here", ""};
      return s;
    }
    s.gradients = {{{"operand", answered(request.program, right_)}}};
    s.bounds = {{"operand", {}}};
    for (const auto& part : s.gradients[0][0].parts)
      s.bounds[0].parts.emplace_back(
          Array(part->shape(), std::vector<double>(part->values().size(), 0.0)));
    return s;
  }

  std::optional<DistributedRun> observe() override { return std::nullopt; }

  std::optional<DistributedRun> run(const Program&, const std::vector<double>&) override {
    return std::nullopt;
  }

  std::optional<DistributedRun> drive(const Program& driven, const Drive& drive) override {
    if (refuses) return std::nullopt;
    DistributedRun run;
    layout = drive;
    for (auto& part : answered(driven, backward)) {
      run.ranks.emplace_back();
      run.ranks.back().gradients = {std::move(part)};
    }
    return run;
  }

  // Holds what the diagnosis finds out about this backward.
  struct Found {
    std::string finding, formula, right, happened;
    std::vector<std::vector<double>> coefficients;
    bool linear = true;
    std::string right_if = {}, remedy = {};
  };
  Found found(Backward wrong) {
    backward = std::move(wrong);
    auto m = measured(*this, program, seen);
    if (!m) return {"not measured", "", "", "", {}, false};
    Blocks blocks = blocks_of_measured(*m);
    if (m->kind == Measurement::Kind::kLinear && !blocks.is_described()) {
      m = measured_by_element(*this, program, seen);
      blocks = blocks_of_measured(*m);
    }
    const Blocks right = blocks_of_right(*m);
    const Measured field = measured_field(*this, *m, blocks, right);
    matrices = field.matrices;
    Found found{"other-backward", field.formula, field.right, "", field.coefficients, field.linear};
    const auto take = [&](std::span<const WrongBackward> names) {
      for (const WrongBackward& name : names) {
        if (!found.happened.empty()) return;
        found.happened = name.happened({*m, blocks, right});
        if (found.happened.empty()) continue;
        found.finding = name.finding;
        found.right_if = name.right_if;
        found.remedy = name.remedy;
      }
    };
    bool columns_right = true;
    for (std::size_t k = 0; k < m->probes.size(); ++k)
      for (std::size_t r = 0; r < m->world_size(); ++r)
        columns_right = columns_right && is_right(*m, k, r);
    if (m->kind == Measurement::Kind::kNotRepeatable)
      found.finding = "nondeterministic";
    else if (m->kind == Measurement::Kind::kStateful)
      found.finding = "stale-or-aliased";
    else if (is_right(*m))
      found.finding = "";
    else if (m->kind == Measurement::Kind::kNotLinear || columns_right)
      take(nonlinear_names());
    else
      take(special_names()), take(general_names());
    return found;
  }

  Program program;
  CallOnRanks seen;
  Backward backward;
  Drive layout;  // the last one asked for
  bool refuses = false;
  int simulations = 0;
  std::optional<Measured::Matrices> matrices;  // of the last backward measured

 private:
  // Returns each rank's stacked answers to the cotangents in the driving program.
  std::vector<std::optional<Array>> answered(const Program& driven, const Backward& f) {
    const auto& stacked = std::get<std::vector<Array>>(driven.inputs[1].value);
    const auto count = static_cast<std::size_t>(stacked[0].shape()[0]);
    std::vector<std::vector<double>> values(stacked.size());
    for (std::size_t k = 0; k < count; ++k) {
      Joint joint;
      for (const Array& of_rank : stacked) {
        const std::size_t size = of_rank.values().size() / count;
        const auto begin = of_rank.values().begin() + static_cast<std::ptrdiff_t>(k * size);
        joint.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(size));
      }
      const Joint answer = f(joint);
      for (std::size_t r = 0; r < answer.size(); ++r)
        values[r].insert(values[r].end(), answer[r].begin(), answer[r].end());
    }
    std::vector<std::optional<Array>> parts;
    for (std::size_t r = 0; r < stacked.size(); ++r) {
      Shape shape = seen.operands[r].shape();
      shape.insert(shape.begin(), static_cast<std::int64_t>(count));
      parts.emplace_back(Array(std::move(shape), std::move(values[r])));
    }
    return parts;
  }

  Backward right_;
};

inline CollectiveCall a_call(CollectiveKind kind, ReduceOp op = ReduceOp::kSum) {
  CollectiveCall call;
  call.kind = kind;
  call.op = op;
  return call;
}

// x̄_r = Σ_k c(r, k) ȳ_k
inline Backward by_coefficients(std::function<double(int r, int k)> c) {
  return [c = std::move(c)](const Joint& y) {
    Joint x(y.size(), std::vector<double>(y[0].size(), 0.0));
    for (std::size_t r = 0; r < y.size(); ++r)
      for (std::size_t k = 0; k < y.size(); ++k)
        for (std::size_t e = 0; e < y[k].size(); ++e)
          x[r][e] += c(static_cast<int>(r), static_cast<int>(k)) * y[k][e];
    return x;
  };
}

// Works on pieces of `size` elements each: x̄_r[a] = Σ c(r, a, k, b) ȳ_k[b].
inline Backward by_pieces(int size, int operand_pieces, int output_pieces,
                          std::function<double(int r, int a, int k, int b)> c) {
  return [=](const Joint& y) {
    Joint x(y.size(), std::vector<double>(static_cast<std::size_t>(size * operand_pieces), 0.0));
    for (int r = 0; r < std::ssize(y); ++r)
      for (int a = 0; a < operand_pieces; ++a)
        for (int k = 0; k < std::ssize(y); ++k)
          for (int b = 0; b < output_pieces; ++b)
            for (int e = 0; e < size; ++e)
              x[static_cast<std::size_t>(r)][static_cast<std::size_t>(a * size + e)] +=
                  c(r, a, k, b) *
                  y[static_cast<std::size_t>(k)][static_cast<std::size_t>(b * size + e)];
    return x;
  };
}

}  // namespace distgrad::sample
