#include "judge/formula.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "base/number_text.h"
#include "model/element_index.h"

namespace distgrad {
namespace {

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

// Holds the numbers of all rows by the rank that a term comes from, for a known choice of pieces.
class Pattern {
 public:
  Pattern(const FormulaView& view, std::vector<const FormulaRow*> rows, const Index& piece)
      : view_(view), rows_(std::move(rows)), piece_(piece) {
    for (const FormulaRow* row : rows_) {
      auto& numbers = numbers_.emplace_back(static_cast<std::size_t>(view.size), 0.0);
      for (const FormulaTerm& term : row->terms) {
        fits_ = fits_ && (!view.cuts_output || view.sums_pieces ||
                          term.piece == piece.of(row->rank, row->piece, term.rank));
        numbers[static_cast<std::size_t>(term.rank)] = term.number;
      }
    }
  }

  // Returns the right side of the formula, or "" if the pattern does not fit.
  std::string text() const {
    if (!fits_) return "";
    for (const auto& attempt :
         {&Pattern::same, &Pattern::of_one_rank, &Pattern::one, &Pattern::own_and_others,
          &Pattern::by_source, &Pattern::up_to_own, &Pattern::by_row, &Pattern::around_own})
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

  // If one rank alone gets anything, counting from its own place means nothing.
  std::string of_one_rank() const {
    const bool is_alone =
        rows_.size() < view_.rows.size() &&
        std::ranges::all_of(rows_, [&](const FormulaRow* row) { return row->rank == rank(0); });
    return is_alone ? by_source() : "";
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

  // Tries one number a rank, times the sum or times one term.
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

  // Tries the same numbers for every rank, counted from its own place.
  std::string around_own() const {
    const auto at = [&](std::size_t i, int d) { return number(i, (rank(i) + d) % view_.size); };
    if (!all([&](std::size_t i, int d) { return at(i, d) == at(0, d); })) return "";
    std::string text;
    for (int d = 0; d < view_.size; ++d)
      if (at(0, d) != 0)
        text += coefficient(at(0, d), text.empty()) + term(d == 0 ? "r" : fmt::format("r+{}", d));
    return text;
  }

  const FormulaView& view_;
  std::vector<const FormulaRow*> rows_;
  const Index& piece_;
  std::vector<std::vector<double>> numbers_;  // [row][rank that the term comes from]
  bool fits_ = true;
};

std::string left_side(const FormulaView& view, const std::string& r, const std::string& a) {
  return "x̄_" + subscript(r) + (view.cuts_operand ? "[" + a + "]" : "");
}

// Says which rows get anything: the left side, and what is said of the other rows.
struct Extent {
  std::string left, otherwise;
  std::string receiver = "r";
};

// Replaces `r` by the one rank that gets anything.
std::string for_receiver(std::string text, const std::string& receiver) {
  for (const std::string before : {"_", "[", "≠"}) {
    for (std::size_t at = 0;
         receiver != "r" && (at = text.find(before + "r", at)) != std::string::npos;
         at += before.size())
      text.replace(at + before.size(), 1, receiver);
  }
  return text;
}

std::optional<Extent> extent_of(const FormulaView& view,
                                const std::vector<const FormulaRow*>& rows) {
  if (rows.size() == view.rows.size()) return Extent{left_side(view, "r", "a"), ""};
  const auto only = [&](auto&& holds) {
    std::size_t count = 0;
    for (const FormulaRow& row : view.rows) count += holds(row);
    return count == rows.size() && std::all_of(rows.begin(), rows.end(),
                                               [&](const FormulaRow* row) { return holds(*row); });
  };
  if (view.cuts_operand && only([](const FormulaRow& row) { return row.piece == row.rank; }))
    return Extent{left_side(view, "r", "r"), ", 0 elsewhere"};
  for (int j = 0; j < view.size; ++j) {
    const std::string text = std::to_string(j);
    if (only([&](const FormulaRow& row) { return row.rank == j; }))
      return Extent{left_side(view, text, "a"), ", 0 on the other ranks", text};
    if (view.size > 2 && only([&](const FormulaRow& row) { return row.rank != j; }))
      return Extent{left_side(view, "r", "a"), ", 0 on rank " + text};
    if (view.cuts_operand && only([&](const FormulaRow& row) { return row.piece == j; }))
      return Extent{left_side(view, "r", text), ", 0 elsewhere"};
    if (view.cuts_operand && view.size > 2 &&
        only([&](const FormulaRow& row) { return row.piece != j; }))
      return Extent{left_side(view, "r", "a"), ", 0 for a = " + text};
  }
  return std::nullopt;
}

// Makes one term of the pieces of a cotangent that a row takes alike. Returns nothing if some row
// does not take them alike.
std::optional<FormulaView> with_pieces_summed(FormulaView view, int pieces) {
  for (FormulaRow& row : view.rows) {
    std::vector<FormulaTerm> terms;
    for (const FormulaTerm& term : row.terms)
      if (terms.empty() || terms.back().rank != term.rank) terms.push_back(term);
    for (const FormulaTerm& first : terms) {
      const auto is_alike = [&](const FormulaTerm& t) {
        return t.rank == first.rank && t.number == first.number;
      };
      const auto is_of_rank = [&](const FormulaTerm& t) { return t.rank == first.rank; };
      if (std::count_if(row.terms.begin(), row.terms.end(), is_alike) != pieces ||
          std::count_if(row.terms.begin(), row.terms.end(), is_of_rank) != pieces)
        return std::nullopt;
    }
    row.terms = std::move(terms);
  }
  view.sums_pieces = true;
  return view;
}

std::string pattern_text(const FormulaView& view) {
  std::vector<const FormulaRow*> rows;
  for (const FormulaRow& row : view.rows)
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

std::string rows_text(const FormulaView& view) {
  std::vector<std::string> lines;
  for (const FormulaRow& row : view.rows) {
    std::string right;
    for (const FormulaTerm& term : row.terms)
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

std::string element_text(const Shape& shape, std::size_t element) {
  if (shape.empty()) return "";
  return fmt::format("[{}]", fmt::join(index_of(shape, static_cast<std::int64_t>(element)), ","));
}

}  // namespace

std::string formula_of(const FormulaView& view, const CollectiveCall& call) {
  std::string text = pattern_text(view);
  if (text.empty()) text = rows_text(view);
  if (view.is_of_derivative) text += derivative_legend(call);
  return text;
}

std::string formula_by_element(const Measurement& m) {
  std::vector<std::string> lines;
  for (std::size_t r = 0; r < m.world_size(); ++r)
    for (std::size_t e = 0; e < static_cast<std::size_t>(m.seen->operands[r].size()); ++e) {
      std::string right;
      bool is_finite = true;
      for (std::size_t k = 0; k < m.probes.size(); ++k) {
        const double number = m.measured.values[k][r][e];
        is_finite = is_finite && std::isfinite(number);
        if (std::abs(number) <= resolution(m, k, r)) continue;
        const Probe& from = m.probes[k];
        right +=
            coefficient(snapped(number, resolution(m, k, r) / std::abs(number)), right.empty()) +
            "ȳ_" + subscript(std::to_string(from.rank)) +
            element_text(m.seen->outputs[from.rank], from.element);
      }
      lines.push_back(fmt::format("x̄_{}{}{}", subscript(std::to_string(r)),
                                  element_text(m.seen->operands[r].shape(), e),
                                  !is_finite      ? " is not finite"
                                  : right.empty() ? " = 0"
                                                  : " = " + right));
    }
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace distgrad
