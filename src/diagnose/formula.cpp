#include "diagnose/formula.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/number_text.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

// --- The terms ---

struct Term {
  int rank = 0, piece = 0;  // of the cotangent
  double number = 0;
  bool operator==(const Term&) const = default;
};

struct Row {
  int rank = 0, piece = 0;  // of the operand
  std::vector<Term> terms;
};

// What is written about: one group where all do the same, else the world.
struct View {
  int size = 0;              // ranks
  bool is_of_group = false;  // ranks count within the group
  bool cuts_operand = false, cuts_output = false;
  bool is_of_derivative = false;  // numbers multiply what is right, and not a copy
  bool sums_pieces = false;       // each term stands for all pieces of its cotangent
  std::vector<Row> rows;
};

bool has_own_derivative(const CollectiveCall& call) {
  return traits(call.kind).takes_op &&
         (call.op == ReduceOp::kProduct || call.op == ReduceOp::kMin || call.op == ReduceOp::kMax);
}

// In which of the two ways the numbers are fewer; a sum's are those of copies.
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

std::vector<Row> rows_of(const Blocks& blocks, bool by_derivative) {
  std::vector<Row> rows;
  for (std::size_t t = 0; t < blocks.to.size(); ++t) {
    Row row{static_cast<int>(blocks.to[t].rank), static_cast<int>(blocks.to[t].piece), {}};
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

// Each rank's list and its place there.
std::vector<std::pair<int, int>> places(const Measurement& m) {
  std::vector<std::pair<int, int>> places(m.world_size());
  for (int g = 0; g < std::ssize(m.partition); ++g)
    for (int i = 0; i < std::ssize(m.partition[g]); ++i) places[m.partition[g][i]] = {g, i};
  return places;
}

// The rows of each group, in its own ranks; nothing where something crosses from group to group.
std::optional<std::vector<std::vector<Row>>> by_group(const Measurement& m,
                                                      const std::vector<Row>& rows) {
  const auto place = places(m);
  std::vector<std::vector<Row>> groups(m.partition.size());
  for (Row row : rows) {
    const auto [group, own] = place[static_cast<std::size_t>(row.rank)];
    for (Term& term : row.terms) {
      const auto [theirs, rank] = place[static_cast<std::size_t>(term.rank)];
      if (theirs != group) return std::nullopt;
      term.rank = rank;
    }
    row.rank = own;
    std::sort(row.terms.begin(), row.terms.end(), [](const Term& a, const Term& b) {
      return std::pair(a.rank, a.piece) < std::pair(b.rank, b.piece);
    });
    groups[static_cast<std::size_t>(group)].push_back(std::move(row));
  }
  for (auto& group : groups)
    std::sort(group.begin(), group.end(), [](const Row& a, const Row& b) {
      return std::pair(a.rank, a.piece) < std::pair(b.rank, b.piece);
    });
  return groups;
}

bool is_alike(const std::vector<Row>& a, const std::vector<Row>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Row& x, const Row& y) {
    return x.rank == y.rank && x.piece == y.piece && x.terms == y.terms;
  });
}

// `counts_in_groups`: as far as the groups do the same.
View view_of(const Measurement& m, const Blocks& blocks, bool counts_in_groups = true) {
  View view;
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

// --- Words ---

std::string coefficient(double number, bool is_first) {
  const std::string sign = number < 0 ? (is_first ? "−" : " − ") : (is_first ? "" : " + ");
  const double size = std::abs(number);
  return sign + (size == 1 ? "" : ratio_text(size) + " ");
}

std::string subscript(const std::string& index) {
  return index.size() > 1 ? "{" + index + "}" : index;
}

std::string list_of(const std::vector<double>& numbers) {
  std::vector<std::string> texts;
  for (const double n : numbers)
    texts.push_back(n == 0 ? "0" : (n < 0 ? "−" : "") + ratio_text(std::abs(n)));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

// --- Patterns ---

struct Index {
  std::string text;
  std::function<int(int r, int a, int k)> of;
};

std::vector<Index> indices(int n, bool with_a, bool with_k) {
  const auto wrapped = [n](int i) { return ((i % n) + n) % n; };
  std::vector<Index> all = {{"r", [](int r, int, int) { return r; }}};
  if (with_a) all.push_back({"a", [](int, int a, int) { return a; }});
  if (with_k) all.push_back({"k", [](int, int, int k) { return k; }});
  all.push_back({"r+1", [=](int r, int, int) { return wrapped(r + 1); }});
  all.push_back({"r−1", [=](int r, int, int) { return wrapped(r - 1); }});
  all.push_back({"N−1−r", [=](int r, int, int) { return n - 1 - r; }});
  if (with_a) {
    all.push_back({"a+1", [=](int, int a, int) { return wrapped(a + 1); }});
    all.push_back({"a−1", [=](int, int a, int) { return wrapped(a - 1); }});
    all.push_back({"N−1−a", [=](int, int a, int) { return n - 1 - a; }});
  }
  if (with_k) {
    all.push_back({"k+1", [=](int, int, int k) { return wrapped(k + 1); }});
    all.push_back({"N−1−k", [=](int, int, int k) { return n - 1 - k; }});
  }
  for (int j = 0; j < n; ++j) all.push_back({std::to_string(j), [j](int, int, int) { return j; }});
  return all;
}

// The numbers of all rows by the rank that a term comes from, once it is known which piece it
// takes.
class Pattern {
 public:
  Pattern(const View& view, std::vector<const Row*> rows, const Index& piece)
      : view_(view), rows_(std::move(rows)), piece_(piece) {
    for (const Row* row : rows_) {
      auto& numbers = numbers_.emplace_back(static_cast<std::size_t>(view.size), 0.0);
      for (const Term& term : row->terms) {
        fits_ = fits_ && (!view.cuts_output || view.sums_pieces ||
                          term.piece == piece.of(row->rank, row->piece, term.rank));
        numbers[static_cast<std::size_t>(term.rank)] = term.number;
      }
    }
  }

  // The right side, or nothing.
  std::string text() const {
    if (!fits_) return "";
    for (const auto& attempt :
         {&Pattern::same, &Pattern::one, &Pattern::own_and_others, &Pattern::by_source,
          &Pattern::up_to_own, &Pattern::by_row, &Pattern::around_own})
      if (std::string text = (this->*attempt)(); !text.empty()) return text;
    return "";
  }

 private:
  double number(std::size_t row, int k) const { return numbers_[row][static_cast<std::size_t>(k)]; }
  int rank(std::size_t row) const { return rows_[row]->rank; }

  template <class Holds>
  bool all(const Holds& holds) const {
    for (std::size_t i = 0; i < rows_.size(); ++i)
      for (int k = 0; k < view_.size; ++k)
        if (!holds(i, k)) return false;
    return true;
  }

  std::string term(const std::string& k) const {
    std::string piece = piece_.text;
    if (piece == "k") piece = k;
    return derivative() + cotangent(subscript(k), piece);
  }
  std::string sum(const std::string& condition = "") const {
    return derivative() + "Σ_" + subscript("k" + condition) + " " + cotangent("k", piece_.text);
  }
  std::string derivative() const { return view_.is_of_derivative ? "d_r " : ""; }
  std::string cotangent(const std::string& k, const std::string& piece) const {
    if (view_.sums_pieces) return "Σ_b ȳ_" + k + "[b]";
    return "ȳ_" + k + (view_.cuts_output ? "[" + piece + "]" : "");
  }

  std::string same() const {
    const double c = number(0, 0);
    if (view_.size < 2 || c == 0 || !all([&](std::size_t i, int k) { return number(i, k) == c; }))
      return "";
    return coefficient(c, true) + sum();
  }

  std::string one() const {
    for (const Index& index : indices(view_.size, view_.cuts_operand, false)) {
      const auto at = [&](std::size_t i) { return index.of(rank(i), rows_[i]->piece, 0); };
      const double c = number(0, at(0));
      if (c != 0 && all([&](std::size_t i, int k) { return number(i, k) == (k == at(i) ? c : 0); }))
        return coefficient(c, true) + term(index.text);
    }
    return "";
  }

  std::string own_and_others() const {
    if (view_.size < 2) return "";
    const double own = number(0, rank(0)), other = number(0, (rank(0) + 1) % view_.size);
    if (!all([&](std::size_t i, int k) { return number(i, k) == (k == rank(i) ? own : other); }))
      return "";
    const std::string first = own == 0 ? "" : coefficient(own, true) + term("r");
    return first + coefficient(other, first.empty()) + sum("≠r");
  }

  std::string by_source() const {
    if (!all([&](std::size_t i, int k) { return number(i, k) == number(0, k); })) return "";
    const std::vector<double>& w = numbers_[0];
    std::vector<int> without;
    std::set<double> kinds;
    for (int k = 0; k < view_.size; ++k) {
      if (w[static_cast<std::size_t>(k)] == 0)
        without.push_back(k);
      else
        kinds.insert(w[static_cast<std::size_t>(k)]);
    }
    if (kinds.size() == 1 && without.size() == 1)
      return coefficient(*kinds.begin(), true) + sum(fmt::format("≠{}", without[0]));
    const auto counted = std::count_if(w.begin(), w.end(), [](double c) { return c != 0; });
    if (counted > 4) return "Σ_k w_k " + term("k") + ", w = " + list_of(w);
    std::string text;
    for (int k = 0; k < view_.size; ++k)
      if (const double c = w[static_cast<std::size_t>(k)]; c != 0)
        text += coefficient(c, text.empty()) + term(std::to_string(k));
    return text;
  }

  std::string up_to_own() const {
    const std::pair<const char*, bool (*)(int, int)> orders[] = {
        {"≤r", [](int k, int r) { return k <= r; }},
        {"<r", [](int k, int r) { return k < r; }},
        {"≥r", [](int k, int r) { return k >= r; }},
        {">r", [](int k, int r) { return k > r; }}};
    for (const auto& [text, counts] : orders) {
      double c = 0;
      for (std::size_t i = 0; i < rows_.size() && c == 0; ++i)
        for (int k = 0; k < view_.size; ++k)
          if (counts(k, rank(i))) c = number(i, k);
      if (c != 0 && all([&, counts = counts](std::size_t i, int k) {
            return number(i, k) == (counts(k, rank(i)) ? c : 0);
          }))
        return coefficient(c, true) + sum(text);
    }
    return "";
  }

  // One number a rank, times the sum or times one term.
  std::string by_row() const {
    std::vector<double> scale(static_cast<std::size_t>(view_.size), 0.0);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      for (int k = 0; k < view_.size; ++k)
        if (number(i, k) != 0) scale[static_cast<std::size_t>(rank(i))] = number(i, k);
    const auto s = [&](std::size_t i) { return scale[static_cast<std::size_t>(rank(i))]; };
    const std::string where = ", s = " + list_of(scale);
    if (all([&](std::size_t i, int k) { return number(i, k) == s(i); }))
      return "s_r " + sum() + where;
    for (const Index& index : indices(view_.size, view_.cuts_operand, false))
      if (all([&](std::size_t i, int k) {
            return number(i, k) == (k == index.of(rank(i), rows_[i]->piece, 0) ? s(i) : 0);
          }))
        return "s_r " + term(index.text) + where;
    return "";
  }

  // The same for every rank, counted from its own place.
  std::string around_own() const {
    const auto at = [&](std::size_t i, int d) { return number(i, (rank(i) + d) % view_.size); };
    if (!all([&](std::size_t i, int d) { return at(i, d) == at(0, d); })) return "";
    std::string text;
    for (int d = 0; d < view_.size; ++d)
      if (at(0, d) != 0)
        text += coefficient(at(0, d), text.empty()) + term(d == 0 ? "r" : fmt::format("r+{}", d));
    return text;
  }

  const View& view_;
  std::vector<const Row*> rows_;
  const Index& piece_;
  std::vector<std::vector<double>> numbers_;  // [row][rank that it comes from]
  bool fits_ = true;
};

std::string left_side(const View& view, const std::string& r, const std::string& a) {
  return "x̄_" + subscript(r) + (view.cuts_operand ? "[" + a + "]" : "");
}

// Which rows get anything: the left side, and what is said of the others.
struct Extent {
  std::string left, otherwise;
  std::string receiver = "r";
};

// Where one rank alone gets anything, that rank is what `r` stands for.
std::string for_receiver(std::string text, const std::string& receiver) {
  for (const std::string before : {"_", "[", "≠"}) {
    for (std::size_t at = 0;
         receiver != "r" && (at = text.find(before + "r", at)) != std::string::npos;
         at += before.size())
      text.replace(at + before.size(), 1, receiver);
  }
  return text;
}

std::optional<Extent> extent_of(const View& view, const std::vector<const Row*>& rows) {
  if (rows.size() == view.rows.size()) return Extent{left_side(view, "r", "a"), ""};
  const auto only = [&](auto&& holds) {
    std::size_t count = 0;
    for (const Row& row : view.rows) count += holds(row);
    return count == rows.size() &&
           std::all_of(rows.begin(), rows.end(), [&](const Row* row) { return holds(*row); });
  };
  if (view.cuts_operand && only([](const Row& row) { return row.piece == row.rank; }))
    return Extent{left_side(view, "r", "r"), ", 0 elsewhere"};
  for (int j = 0; j < view.size; ++j) {
    const std::string text = std::to_string(j);
    if (only([&](const Row& row) { return row.rank == j; }))
      return Extent{left_side(view, text, "a"), ", 0 on the other ranks", text};
    if (view.size > 2 && only([&](const Row& row) { return row.rank != j; }))
      return Extent{left_side(view, "r", "a"), ", 0 on rank " + text};
    if (view.cuts_operand && only([&](const Row& row) { return row.piece == j; }))
      return Extent{left_side(view, "r", text), ", 0 elsewhere"};
    if (view.cuts_operand && view.size > 2 && only([&](const Row& row) { return row.piece != j; }))
      return Extent{left_side(view, "r", "a"), ", 0 for a = " + text};
  }
  return std::nullopt;
}

// Where a row takes all pieces of a cotangent alike, one term for them; nothing where some does
// not.
std::optional<View> with_pieces_summed(View view, int pieces) {
  for (Row& row : view.rows) {
    std::vector<Term> terms;
    for (const Term& term : row.terms)
      if (terms.empty() || terms.back().rank != term.rank) terms.push_back(term);
    for (const Term& first : terms) {
      const auto is_alike = [&](const Term& t) {
        return t.rank == first.rank && t.number == first.number;
      };
      const auto is_of_rank = [&](const Term& t) { return t.rank == first.rank; };
      if (std::count_if(row.terms.begin(), row.terms.end(), is_alike) != pieces ||
          std::count_if(row.terms.begin(), row.terms.end(), is_of_rank) != pieces)
        return std::nullopt;
    }
    row.terms = std::move(terms);
  }
  view.sums_pieces = true;
  return view;
}

std::string pattern_text(const View& view) {
  std::vector<const Row*> rows;
  for (const Row& row : view.rows)
    if (!row.terms.empty()) rows.push_back(&row);
  if (rows.empty()) return left_side(view, "r", "a") + " = 0";
  const auto extent = extent_of(view, rows);
  if (!extent) return "";
  for (const Index& piece : indices(view.size, view.cuts_operand, true)) {
    if (const std::string right = Pattern(view, rows, piece).text(); !right.empty())
      return extent->left + " = " + for_receiver(right, extent->receiver) + extent->otherwise;
    if (!view.cuts_output || view.sums_pieces) break;
  }
  if (!view.cuts_output || view.sums_pieces) return "";
  const auto summed = with_pieces_summed(view, view.size);
  return summed ? pattern_text(*summed) : "";
}

std::string rows_text(const View& view) {
  std::vector<std::string> lines;
  for (const Row& row : view.rows) {
    std::string right;
    for (const Term& term : row.terms)
      right += coefficient(term.number, right.empty()) + (view.is_of_derivative ? "d_r " : "") +
               "ȳ_" + subscript(std::to_string(term.rank)) +
               (view.cuts_output ? fmt::format("[{}]", term.piece) : "");
    lines.push_back(left_side(view, std::to_string(row.rank), std::to_string(row.piece)) + " = " +
                    (right.empty() ? "0" : right));
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

std::string derivative_legend(const CollectiveCall& call) {
  switch (call.op) {
    case ReduceOp::kProduct:
      return ", d_r = ∏_{j≠r} x_j";
    case ReduceOp::kMax:
      return ", d_r = 1 where x_r is the maximum (shared by ties), else 0";
    case ReduceOp::kMin:
      return ", d_r = 1 where x_r is the minimum (shared by ties), else 0";
    default:
      return ", d_r as it is right";
  }
}

// --- By element ---

std::string element_text(const Shape& shape, std::size_t element) {
  if (shape.empty()) return "";
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; element /= static_cast<std::size_t>(shape[d]))
    index[d] = static_cast<std::int64_t>(element % static_cast<std::size_t>(shape[d]));
  return fmt::format("[{}]", fmt::join(index, ","));
}

// One column of the matrices: what a unit in one element of one rank's output is answered with.
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

// What the blocks make of a unit whose right answer is known.
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

namespace {

std::string formula_of(const Measurement& m, const Blocks& blocks, bool counts_in_groups) {
  const View view = view_of(m, blocks, counts_in_groups);
  std::string text = pattern_text(view);
  if (text.empty()) text = rows_text(view);
  if (view.is_of_derivative) text += derivative_legend(m.call());
  return text;
}

}  // namespace

std::string formula_of(const Measurement& m, const Blocks& blocks) {
  return formula_of(m, blocks, true);
}

std::string formula_by_element(const Measurement& m) {
  std::vector<std::string> lines;
  for (std::size_t r = 0; r < m.world_size(); ++r)
    for (std::size_t e = 0; e < static_cast<std::size_t>(m.seen->operands[r].size()); ++e) {
      std::string right;
      for (std::size_t k = 0; k < m.probes.size(); ++k) {
        const double number = m.measured.values[k][r][e];
        if (std::abs(number) <= resolution(m, k, r)) continue;
        const Probe& from = m.probes[k];
        right +=
            coefficient(snapped(number, resolution(m, k, r) / std::abs(number)), right.empty()) +
            "ȳ_" + subscript(std::to_string(from.rank)) +
            element_text(m.seen->outputs[from.rank], from.element);
      }
      lines.push_back(fmt::format("x̄_{}{} = {}", subscript(std::to_string(r)),
                                  element_text(m.seen->operands[r].shape(), e),
                                  right.empty() ? "0" : right));
    }
  return fmt::format("{}", fmt::join(lines, "; "));
}

Measured measured_field(Machine& machine, const Measurement& m, const Blocks& measured,
                        const Blocks& right) {
  Measured field;
  field.linear = m.kind == Measurement::Kind::kLinear;
  field.shown_by = shown_by(m);
  const bool is_of_group =
      measured.is_described() && view_of(m, measured).is_of_group && view_of(m, right).is_of_group;
  field.right = formula_of(m, right, is_of_group);
  field.ranks = m.partition[0];
  if (!is_of_group) {
    field.ranks.resize(m.world_size());
    std::iota(field.ranks.begin(), field.ranks.end(), 0);
  }
  if (!field.linear) {
    field.formula = "not linear: " + m.shown;
    return field;
  }
  field.formula = measured.is_described() ? formula_of(m, measured, is_of_group)
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
