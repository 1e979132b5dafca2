#include "judge/measured_field.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "judge/formula.h"

namespace distgrad {
namespace {

// Holds one column of the matrices: the answer to a unit in one element of one rank's output.
struct Column {
  std::size_t rank = 0, element = 0;
  Joint measured, right;
};

std::vector<Column> columns_of_basis(const Measurement& m) {
  std::vector<Column> columns;
  for (std::size_t k = 0; k < m.probes.size(); ++k)
    columns.push_back(
        {m.probes[k].rank, m.probes[k].element, m.measured.values[k], m.right.values[k]});
  std::sort(columns.begin(), columns.end(), [](const Column& a, const Column& b) {
    return std::pair(a.rank, a.element) < std::pair(b.rank, b.element);
  });
  return columns;
}

std::size_t place_of(const Elements& piece, std::size_t element) {
  return static_cast<std::size_t>(std::find(piece.begin(), piece.end(), element) - piece.begin());
}

// Returns the blocks' answer to a unit whose right answer is known.
Joint answer_of(const Measurement& m, const Blocks& blocks, const Column& column) {
  Joint answer = column.right;
  for (std::size_t t = 0; t < blocks.to.size(); ++t)
    for (std::size_t f = 0; f < blocks.from.size(); ++f) {
      const auto& [rank, piece] = blocks.from[f];
      const Elements& source = m.pieces.outputs[rank][piece];
      const std::size_t at = rank == column.rank ? place_of(source, column.element) : source.size();
      if (at == source.size()) continue;
      const Block& block = blocks.at[t][f];
      const Elements& target = m.pieces.operands[blocks.to[t].rank][blocks.to[t].piece];
      for (std::size_t e = 0; e < target.size(); ++e) {
        double& value = answer[blocks.to[t].rank][target[e]];
        const std::vector<double>& derivative = blocks.derivatives[t];
        if (block.of_right && value != 0)
          value *= *block.of_right;
        else if (block.is_zero || e != at)
          value = 0;
        else if (block.of_right && !derivative.empty())
          value = *block.of_right * derivative[e];
        else
          value = block.of_copy.value_or(0);
      }
    }
  return answer;
}

std::vector<Column> columns_of_blocks(Machine& machine, const Measurement& m,
                                      const Blocks& blocks) {
  const std::vector<Joint> units = units_of(*m.seen);
  if (units.empty()) return {};
  const auto right =
      right_responses(machine, *m.program, *m.seen, m.call(), m.program->groups, units);
  if (!right) return {};
  std::vector<Column> columns;
  for (std::size_t r = 0; r < m.world_size(); ++r)
    for (std::size_t e = 0; e < static_cast<std::size_t>(element_count(m.seen->outputs[r])); ++e) {
      Column column{r, e, {}, right->values[columns.size()]};
      column.measured = answer_of(m, blocks, column);
      columns.push_back(std::move(column));
    }
  return columns;
}

std::optional<Measured::Matrices> matrices_of(const Measurement& m, const std::vector<Column>& all,
                                              const std::vector<int>& ranks) {
  if (all.empty()) return std::nullopt;
  Measured::Matrices matrices;
  std::vector<const Column*> columns;
  for (const int rank : ranks) {
    const auto r = static_cast<std::size_t>(rank);
    matrices.rows.push_back(static_cast<int>(m.seen->operands[r].size()));
    matrices.columns.push_back(static_cast<int>(element_count(m.seen->outputs[r])));
    for (const Column& column : all)
      if (column.rank == r) columns.push_back(&column);
  }
  for (const int rank : ranks)
    for (std::size_t e = 0; e < m.seen->operands[static_cast<std::size_t>(rank)].values().size();
         ++e)
      for (const Column* column : columns) {
        matrices.measured.push_back(column->measured[static_cast<std::size_t>(rank)][e]);
        matrices.right.push_back(column->right[static_cast<std::size_t>(rank)][e]);
      }
  return matrices;
}

}  // namespace

Measured measured_field(Machine& machine, const Measurement& m, const Blocks& measured,
                        const Blocks& right) {
  Measured field;
  field.linear = m.kind == Measurement::Kind::kLinear;
  field.shown_by = shown_by(m);
  const bool is_of_group = measured.is_described() && view_of(m, measured, true).is_of_group &&
                           view_of(m, right, true).is_of_group;
  const auto formula = [&](const Blocks& blocks) {
    return formula_of(view_of(m, blocks, is_of_group), m.call());
  };
  field.right = formula(right);
  field.ranks = m.partition[0];
  if (!is_of_group) {
    field.ranks.resize(m.world_size());
    std::iota(field.ranks.begin(), field.ranks.end(), 0);
  }
  if (!field.linear) {
    field.formula = "not linear: " + m.shown;
    return field;
  }
  field.formula = measured.is_described() ? formula(measured)
                  : m.is_basis            ? formula_by_element(m)
                               : "a matrix that no number for each pair of pieces describes";
  if (measured.is_described())
    if (const auto numbers = coefficients(measured, right, m.world_size()))
      for (const int to : field.ranks) {
        std::vector<double>& row = field.coefficients.emplace_back();
        for (const int from : field.ranks)
          row.push_back((*numbers)[static_cast<std::size_t>(to)][static_cast<std::size_t>(from)]);
      }
  if (m.is_basis)
    field.matrices = matrices_of(m, columns_of_basis(m), field.ranks);
  else if (measured.is_described())
    field.matrices = matrices_of(m, columns_of_blocks(machine, m, measured), field.ranks);
  return field;
}

}  // namespace distgrad
