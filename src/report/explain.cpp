#include "report/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/distance.h"
#include "model/element_index.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr std::size_t kListedRanks = 8;
constexpr std::int64_t kListedElements = 3;
constexpr std::size_t kWidestCell = 58;
constexpr std::size_t kRowIndent = 4, kCellGap = 3;
constexpr std::size_t kWhereWidth = 9;  // "all ranks"
constexpr int kShownDigits = 6;
constexpr int kSummaryDigits = 4;  // if nothing is to be told apart

constexpr std::string_view kMarked = "\033[1;33m";

// --- Numbers ---

bool is_whole(const Array& array, const TextOptions& options) {
  return options.full || (array.size() <= kWholeElements &&
                          width_of(array_text(array, kShownDigits)) <= kWidestCell);
}

double norm_of(const Array& array) {
  double sum = 0;
  for (const double v : array.values()) sum += v * v;
  return std::sqrt(sum);
}

std::string cell(const Array& array, int digits, const TextOptions& options) {
  if (is_whole(array, options)) return array_text(array, options.full ? kShortest : digits);
  digits += kSummaryDigits - kShownDigits;
  std::string first;
  for (std::int64_t i = 0; i < std::min(kListedElements, array.size()); ++i)
    first += number_text(array[i], digits) + ", ";
  return fmt::format("{}... shape {}, norm {}", first, index_text(array.shape()),
                     number_text(norm_of(array), digits));
}

// Returns as few digits as show the difference; six if there is none.
int digits_between(const std::vector<Array>& a, const std::vector<Array>& b,
                   const TextOptions& options) {
  if (a.size() != b.size()) return kShownDigits;
  for (const int digits : {kShownDigits, 9, 12})
    for (std::size_t r = 0; r < a.size(); ++r)
      if (cell(a[r], digits, options) != cell(b[r], digits, options)) return digits;
  return kShownDigits;
}

// Returns the rank that is furthest off, or nothing if no element differs.
std::optional<std::size_t> furthest_rank(const std::vector<Array>& truth,
                                         const std::vector<Array>& seen) {
  std::optional<std::size_t> rank;
  double worst = 0;
  for (std::size_t r = 0; r < truth.size() && r < seen.size(); ++r) {
    if (truth[r].shape() != seen[r].shape()) continue;
    const double distance = furthest_apart(truth[r], seen[r]).distance;
    if (distance > worst) {
      worst = distance;
      rank = r;
    }
  }
  return rank;
}

// --- The program, a block of rows for each value ---

struct ValueRow {
  std::string label;
  std::vector<std::string> cells;  // by rank shown
  bool same = false;               // all ranks, shown or not, hold the same
};

struct Block {
  const ExplainedValue* value;
  std::vector<ValueRow> rows;
  std::vector<std::string> remarks;
};

class ExplainedProgram {
 public:
  ExplainedProgram(const Explanation& explanation, const TextOptions& options) : options_(options) {
    choose_ranks(explanation);
    for (const ExplainedValue& value : explanation.values) blocks_.push_back(block_of(value));
    measure();
  }

  std::string text() const {
    std::string out;
    bool has_header = false;  // of the columns, above the first block in columns
    for (const Block& block : blocks_) {
      if (in_columns(block) && !has_header) {
        out += line("", names());
        has_header = true;
      }
      out += wrapped(for_terminal(block.value->title), 2, options_.width);
      if (!block.value->mark.empty()) out += mark(block.value->mark);
      for (const ValueRow& row : block.rows)
        out += in_columns(block) ? line(row.label, row.cells) : listed(row);
      for (const std::string& remark : block.remarks)
        out += wrapped(remark, kRowIndent, options_.width);
    }
    if (ranks_.size() < rank_count_)
      out +=
          fmt::format("  ({} of {} ranks shown; --full shows all)\n", ranks_.size(), rank_count_);
    return out;
  }

 private:
  // Chooses the first rank, and those that show what is wrong.
  void choose_ranks(const Explanation& explanation) {
    for (const ExplainedValue& value : explanation.values)
      rank_count_ = std::max({rank_count_, value.value.size(), value.cotangent.size()});
    const auto add = [&](std::size_t rank) {
      if ((options_.full || ranks_.size() < kListedRanks) &&
          std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end())
        ranks_.push_back(rank);
    };
    if (rank_count_ > 0) add(0);
    for (const ExplainedValue& value : explanation.values)
      for (const auto* pair : {&value.ranks_cotangent, &value.observed_value}) {
        const auto& truth = pair == &value.observed_value ? value.value : value.cotangent;
        if (const auto rank = furthest_rank(truth, *pair)) add(*rank);
      }
    for (std::size_t r = 0; r < rank_count_; ++r) add(r);
    std::sort(ranks_.begin(), ranks_.end());
  }

  Block block_of(const ExplainedValue& value) const {
    Block block{&value, {}, {}};
    add_rows(block, "value", "simulated", "observed", value.value, value.observed_value);
    const char* name = value.kind == ExplainedValue::Kind::kInput ? "gradient" : "cotangent";
    add_rows(block, name, "true", "ranks'", value.cotangent, value.ranks_cotangent);
    return block;
  }

  void add_rows(Block& block, const std::string& name, const char* of_truth, const char* of_ranks,
                const std::vector<Array>& truth, const std::vector<Array>& seen) const {
    const int digits = digits_between(truth, seen, options_);
    const bool both = !truth.empty() && !seen.empty();
    if (!truth.empty()) add_row(block, both ? name + ", " + of_truth : name, truth, digits);
    if (seen.empty()) return;
    add_row(block, name + ", " + of_ranks, seen, digits);
    const auto rank = furthest_rank(truth, seen);
    if (!rank || is_whole(truth[*rank], options_)) return;
    const Array &t = truth[*rank], &s = seen[*rank];
    const std::int64_t at = furthest_apart(t, s).element;
    block.remarks.push_back(fmt::format("furthest apart on rank {} at {}: {} in place of {}", *rank,
                                        index_text(index_of(t.shape(), at)),
                                        number_text(s[at], kShownDigits),
                                        number_text(t[at], kShownDigits)));
  }

  void add_row(Block& block, std::string label, const std::vector<Array>& by_rank,
               int digits) const {
    ValueRow row{std::move(label), {}, false};
    row.same = by_rank.size() == rank_count_ &&
               std::all_of(by_rank.begin(), by_rank.end(),
                           [&](const Array& a) { return same_values(a, by_rank[0]); });
    for (const std::size_t r : ranks_)
      row.cells.push_back(r < by_rank.size() ? cell(by_rank[r], digits, options_) : "-");
    block.rows.push_back(std::move(row));
  }

  // Makes a column for each rank, as wide for all blocks as the widest of them needs.
  void measure() {
    for (const Block& block : blocks_)
      for (const ValueRow& row : block.rows)
        label_width_ = std::max(label_width_, width_of(row.label));
    const std::size_t room = options_.width - std::min(options_.width, kRowIndent + label_width_);
    limit_ = ranks_.empty() ? 0 : room / ranks_.size();
    limit_ -= std::min(limit_, kCellGap);
    const std::vector<std::string> headers = names();
    for (const std::string& header : headers) widths_.push_back(width_of(header));
    for (const Block& block : blocks_) {
      if (!in_columns(block)) continue;
      for (const ValueRow& row : block.rows)
        for (std::size_t i = 0; i < row.cells.size(); ++i)
          widths_[i] = std::max(widths_[i], width_of(row.cells[i]));
    }
  }

  bool in_columns(const Block& block) const {
    const auto fits = [&](const std::string& text) { return width_of(text) <= limit_; };
    const std::vector<std::string> headers = names();
    return std::all_of(headers.begin(), headers.end(), fits) &&
           std::all_of(block.rows.begin(), block.rows.end(), [&](const ValueRow& row) {
             return std::all_of(row.cells.begin(), row.cells.end(), fits);
           });
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const std::size_t r : ranks_) all.push_back(fmt::format("rank {}", r));
    return all;
  }

  std::string line(const std::string& label, const std::vector<std::string>& cells) const {
    std::string out = std::string(kRowIndent, ' ') + padded(label, label_width_);
    for (std::size_t i = 0; i < cells.size(); ++i)
      out += std::string(kCellGap, ' ') + padded_left(cells[i], widths_[i]);
    return out + '\n';
  }

  // Writes a line for each rank, or one if all hold the same.
  std::string listed(const ValueRow& row) const {
    const bool once = row.same && rank_count_ > 1;
    std::string out;
    for (std::size_t i = 0; i < (once ? 1 : row.cells.size()); ++i) {
      const std::string where = once ? "all ranks" : fmt::format("rank {}", ranks_[i]);
      const std::string head = std::string(kRowIndent, ' ') +
                               padded(i == 0 ? row.label : "", label_width_) +
                               std::string(kCellGap, ' ') + where;
      const std::string whole =
          padded(head, kRowIndent + label_width_ + kCellGap + kWhereWidth + kCellGap) +
          row.cells[i];
      out += width_of(whole) <= options_.width
                 ? whole + '\n'
                 : head + '\n' + wrapped(row.cells[i], 2 * kRowIndent, options_.width);
    }
    return out;
  }

  std::string mark(const std::string& text) const {
    std::string lines = wrapped(">>> " + text, kRowIndent, options_.width);
    if (!options_.color) return lines;
    lines.pop_back();
    return fmt::format("{}{}{}\n", kMarked, lines, kUncolored);
  }

  const TextOptions& options_;
  std::size_t rank_count_ = 0;
  std::vector<std::size_t> ranks_;  // those shown
  std::vector<Block> blocks_;
  std::size_t label_width_ = width_of("cotangent, ranks'");  // at least
  std::size_t limit_ = 0;                                    // of a column's width
  std::vector<std::size_t> widths_;
};

bool has_ranks_cotangents(const Explanation& e) {
  return std::any_of(e.values.begin(), e.values.end(),
                     [](const ExplainedValue& v) { return !v.ranks_cotangent.empty(); });
}

std::string legend(const Explanation& e, const TextOptions& options) {
  std::string text =
      "Read the values from the top down and the cotangents from the bottom up. The cotangent of a "
      "value on a rank is the derivative of J by it; that of the loss is what backward starts "
      "with.";
  if (has_ranks_cotangents(e))
    text += " \"ranks'\" is what the ranks' own backward arrived at: " + e.how_known + ".";
  return wrapped(text, 2, options.width);
}

std::string section(std::string_view title) { return fmt::format("\n{}\n", title); }

}  // namespace

std::string explain_text(const Explanation& e, const CaseResult& result, TextOptions options) {
  options.verbose = true;  // the findings and warnings in full
  const std::string report = case_text(result, options);
  const std::size_t first_line = report.find('\n') + 1;
  std::string out = report.substr(0, first_line);
  if (!e.note.empty()) out += wrapped(for_terminal(e.note), 2, options.width);
  if (!e.setting.empty()) out += wrapped(for_terminal(e.setting), 2, options.width);
  if (!e.values.empty()) {
    out += section("The program") + legend(e, options) + "\n" + ExplainedProgram(e, options).text();
    for (const std::string& remark : e.remarks)
      out += wrapped(for_terminal(remark), 2, options.width);
  }
  if (!e.parting.empty()) {
    out += section("Where observed and true values part") +
           wrapped(for_terminal(e.parting), 2, options.width);
    if (!e.measured.empty())
      out += wrapped(for_terminal("Measured: " + e.measured), 2, options.width);
  }
  out += section("What came of it") + report.substr(first_line);
  return out +
         fmt::format("\nAgain: {} {}\n", options.again, on_one_line(shell_quoted(result.which.id)));
}

}  // namespace distgrad
