#include "judge/formula_view.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace distgrad {
namespace {

bool has_own_derivative(const CollectiveCall& call) {
  return traits(call.kind).takes_op &&
         (call.op == ReduceOp::kProduct || call.op == ReduceOp::kMin || call.op == ReduceOp::kMax);
}

// Chooses the reading with fewer distinct numbers; a sum's numbers are those of copies.
bool reads_by_derivative(const Measurement& m, const Blocks& blocks) {
  std::set<double> of_right, of_copy;
  bool all_right = true, all_copies = true;
  for (const auto& row : blocks.at)
    for (const Block& block : row) {
      if (block.is_zero) continue;
      all_right = all_right && block.of_right;
      all_copies = all_copies && block.of_copy;
      if (block.of_right) of_right.insert(*block.of_right);
      if (block.of_copy) of_copy.insert(*block.of_copy);
    }
  if (all_right != all_copies) return all_right;
  return has_own_derivative(m.call()) ? of_right.size() <= of_copy.size()
                                      : of_right.size() < of_copy.size() && !all_copies;
}

std::vector<FormulaRow> rows_of(const Blocks& blocks, bool by_derivative) {
  std::vector<FormulaRow> rows;
  for (std::size_t t = 0; t < blocks.to.size(); ++t) {
    FormulaRow row{static_cast<int>(blocks.to[t].rank), static_cast<int>(blocks.to[t].piece), {}};
    for (std::size_t f = 0; f < blocks.from.size(); ++f) {
      const Block& block = blocks.at[t][f];
      if (block.is_zero) continue;
      const double number = by_derivative ? block.of_right.value_or(0) : block.of_copy.value_or(0);
      row.terms.push_back(
          {static_cast<int>(blocks.from[f].rank), static_cast<int>(blocks.from[f].piece), number});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Returns each rank's list and its place there.
std::vector<std::pair<int, int>> places(const Measurement& m) {
  std::vector<std::pair<int, int>> places(m.world_size());
  for (int g = 0; g < std::ssize(m.partition); ++g)
    for (int i = 0; i < std::ssize(m.partition[g]); ++i) places[m.partition[g][i]] = {g, i};
  return places;
}

// Returns the rows of each group, in the group's ranks, or nothing if a term crosses groups.
std::optional<std::vector<std::vector<FormulaRow>>> by_group(const Measurement& m,
                                                             const std::vector<FormulaRow>& rows) {
  const auto place = places(m);
  std::vector<std::vector<FormulaRow>> groups(m.partition.size());
  for (FormulaRow row : rows) {
    const auto [group, own] = place[static_cast<std::size_t>(row.rank)];
    for (FormulaTerm& term : row.terms) {
      const auto [theirs, rank] = place[static_cast<std::size_t>(term.rank)];
      if (theirs != group) return std::nullopt;
      term.rank = rank;
    }
    row.rank = own;
    std::sort(row.terms.begin(), row.terms.end(), [](const FormulaTerm& a, const FormulaTerm& b) {
      return std::pair(a.rank, a.piece) < std::pair(b.rank, b.piece);
    });
    groups[static_cast<std::size_t>(group)].push_back(std::move(row));
  }
  for (auto& group : groups)
    std::sort(group.begin(), group.end(), [](const FormulaRow& a, const FormulaRow& b) {
      return std::pair(a.rank, a.piece) < std::pair(b.rank, b.piece);
    });
  return groups;
}

bool is_alike(const std::vector<FormulaRow>& a, const std::vector<FormulaRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const FormulaRow& x, const FormulaRow& y) {
                      return x.rank == y.rank && x.piece == y.piece && x.terms == y.terms;
                    });
}

}  // namespace

FormulaView view_of(const Measurement& m, const Blocks& blocks, bool counts_in_groups) {
  FormulaView view;
  view.is_of_derivative = reads_by_derivative(m, blocks);
  view.rows = rows_of(blocks, view.is_of_derivative);
  for (const Pieces& pieces : m.pieces.operands) view.cuts_operand |= pieces.size() > 1;
  for (const Pieces& pieces : m.pieces.outputs) view.cuts_output |= pieces.size() > 1;
  view.size = static_cast<int>(m.world_size());
  if (!counts_in_groups) return view;
  const auto groups = by_group(m, view.rows);
  if (!groups || std::any_of(groups->begin(), groups->end(),
                             [&](const auto& group) { return !is_alike(group, groups->front()); }))
    return view;
  view.is_of_group = true;
  view.size = static_cast<int>(m.partition[0].size());
  view.rows = groups->front();
  return view;
}

}  // namespace distgrad
