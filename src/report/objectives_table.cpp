#include "report/objectives_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "model/distance.h"
#include "model/element_index.h"
#include "report/words.h"

namespace distgrad {
namespace {

// Holds one rank's gradient, or the full tensor; absent if there is no gradient.
using Part = std::optional<Array>;

constexpr std::size_t kWholeWidth = 60;     // ... if they are no wider
constexpr std::size_t kColumns = 8;         // ranks, or elements, without --full
constexpr std::size_t kFullColumns = 1000;  // with it
constexpr std::size_t kIndent = 2;
constexpr std::size_t kGap = 3;

struct Row {
  std::string label;
  std::vector<Part> parts;
  std::string note;
};

// Shows one part, whole or one element of it.
struct Column {
  std::size_t part = 0;
  std::optional<std::int64_t> element;
  std::string header;
};

struct Reading {
  std::string_view objective;
  std::string_view declared;  // who or what means it, if the file declares it
  std::string_view observed;  // the same beside "= observed"
};

constexpr Reading kReadings[] = {
    {"sum", "every rank's loss counts", "every rank's loss counts"},
    {"mean", "the mean of the ranks' losses", ""},
    {"replicated", "one loss, computed on every rank", "one loss, computed on every rank"},
};

bool is_rank(std::string_view objective) { return objective.starts_with("rank:"); }
bool is_by_axis(std::string_view objective) {
  return objective.find('=') != std::string_view::npos;
}

std::string meaning(std::string_view objective, bool declared) {
  for (const Reading& m : kReadings)
    if (m.objective == objective) return std::string(declared ? m.declared : m.observed);
  if (is_rank(objective)) return fmt::format("only rank {}'s loss counts", objective.substr(5));
  return {};
}

// --- What is shown ---

bool matches(const GradientComparison& c, std::string_view objective) {
  return std::any_of(c.matches.begin(), c.matches.end(),
                     [&](const auto& m) { return m.first == objective && m.second; });
}

bool same(const std::vector<Part>& a, const std::vector<Part>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Part& x, const Part& y) {
    if (!x || !y) return x.has_value() == y.has_value();
    return x->shape() == y->shape() &&
           std::equal(x->values().begin(), x->values().end(), y->values().begin());
  });
}

// Shows sum, mean and replicated, which people mean, and always the declared one; one rank's loss
// only if nothing else explains the observation; and combinations by mesh axis that do.
std::vector<std::string> objectives_worth_showing(const GradientComparison& c,
                                                  const std::string& declared) {
  constexpr std::size_t kCombinations = 3;
  std::vector<std::string> shown;
  bool explained = matches(c, declared);
  std::size_t combinations = 0;
  for (const auto& [objective, truth] : c.truth_by_objective) {
    if (is_rank(objective) && objective != declared) continue;
    if (is_by_axis(objective) && objective != declared &&
        !(matches(c, objective) && combinations++ < kCombinations))
      continue;
    explained = explained || matches(c, objective);
    shown.push_back(objective);
  }
  for (const auto& [objective, truth] : c.truth_by_objective) {
    if (explained || !is_rank(objective) || objective == declared || !matches(c, objective))
      continue;
    shown.push_back(objective);
    explained = true;
  }
  return shown;
}

const std::vector<Part>* truth_under(const GradientComparison& c, std::string_view objective) {
  for (const auto& [name, truth] : c.truth_by_objective)
    if (name == objective) return &truth;
  return nullptr;
}

std::vector<Part> declared_truth(const GradientComparison& c) {
  if (c.truth_full) return {c.truth_full};
  return c.truth_by_rank;
}

std::vector<Part> observed(const GradientComparison& c) {
  if (c.observed_full) return {c.observed_full};
  return c.observed_by_rank;
}

// Repeats one full tensor for each rank, which must hold it.
std::vector<Part> spread(std::vector<Part> parts, std::size_t count) {
  if (parts.size() == 1 && count > 1) parts.assign(count, Part(parts[0]));
  return parts;
}

// Returns observed/truth, if it is one number for every element that is not zero on both sides.
std::optional<double> factor_between(const std::vector<Part>& seen,
                                     const std::vector<Part>& truth) {
  std::optional<double> factor;
  for (std::size_t p = 0; p < seen.size() && p < truth.size(); ++p) {
    if (!seen[p] || !truth[p] || seen[p]->shape() != truth[p]->shape()) return std::nullopt;
    for (std::int64_t i = 0; i < seen[p]->size(); ++i) {
      const double a = (*seen[p])[i], b = (*truth[p])[i];
      if (a == 0 && b == 0) continue;
      if (a == 0 || b == 0 || !std::isfinite(a / b)) return std::nullopt;
      if (factor && std::abs(a / b - *factor) > 1e-6 * std::abs(*factor)) return std::nullopt;
      factor = factor.value_or(a / b);
    }
  }
  return factor;
}

std::string note_for(const GradientComparison& c, const Row& row, const std::vector<Part>& seen,
                     bool declared, bool any_matches) {
  const bool equal = !seen.empty() && matches(c, row.label);
  std::string note = declared ? (equal ? "declared, = observed" : "declared")
                     : equal  ? "= observed"
                              : "";
  const std::string text = declared || equal ? meaning(row.label, declared) : "";
  if (!text.empty()) note += ": " + text;
  const auto factor = any_matches ? std::nullopt : factor_between(seen, row.parts);
  if (!factor || std::abs(*factor - 1) < 1e-6) return note;
  return fmt::format("{}{}observed is {} x this", note, note.empty() ? "" : "; ",
                     ratio_text(*factor));
}

std::vector<Row> rows_of(const GradientComparison& c, const std::string& declared) {
  const std::vector<Part> seen = observed(c);
  const auto shown = objectives_worth_showing(c, declared);
  const bool any_matches =
      std::any_of(shown.begin(), shown.end(), [&](const auto& o) { return matches(c, o); });
  const std::size_t count = seen.empty() ? declared_truth(c).size() : seen.size();
  std::vector<Row> truths;
  for (const std::string& objective : shown) {
    Row row{objective, spread(*truth_under(c, objective), count), ""};
    row.note = note_for(c, row, seen, objective == declared, any_matches);
    truths.push_back(std::move(row));
  }
  if (truths.empty()) truths.push_back({declared, spread(declared_truth(c), count), "declared"});
  // With one rank every objective is the same.
  const bool all_same = std::all_of(truths.begin(), truths.end(),
                                    [&](const Row& r) { return same(r.parts, truths[0].parts); });
  if (all_same) std::erase_if(truths, [&](const Row& r) { return r.label != declared; });
  std::vector<Row> rows;
  if (!seen.empty()) rows.push_back({"observed", seen, ""});
  rows.insert(rows.end(), truths.begin(), truths.end());
  return rows;
}

// --- Columns ---

double distance_at(const Part& seen, const Part& truth, std::int64_t element) {
  if (!seen || !truth || seen->shape() != truth->shape())
    return std::numeric_limits<double>::infinity();
  return distance((*seen)[element], (*truth)[element]);
}

// Holds what the table could show, before it is cut to what fits: a column for each part, or for
// each element of large ones.
class Columns {
 public:
  Columns(const GradientComparison& c, const std::vector<Row>& rows, std::vector<Part> truth,
          std::string name_of_whole)
      : name_of_whole_(std::move(name_of_whole)),
        seen_(c.observed_by_rank.empty() ? truth : observed(c)),
        truth_(std::move(truth)) {
    whole_ = std::all_of(rows.begin(), rows.end(), [](const Row& row) {
      return std::all_of(row.parts.begin(), row.parts.end(), fits_whole);
    });
  }

  // Returns true if a column is a whole part rather than an element.
  bool whole() const { return whole_; }

  // Returns "rank 1", or the name of what is compared instead of each rank's.
  std::string part_name(std::size_t part) const {
    return name_of_whole_.empty() ? fmt::format("rank {}", part) : name_of_whole_;
  }

  // Returns the columns furthest off, by place. `total` becomes the number of all.
  std::vector<Column> chosen(std::size_t limit, std::size_t& total) const {
    std::vector<Candidate> all = candidates();
    total = all.size();
    if (all.size() > limit) {
      const auto cut = all.begin() + static_cast<std::ptrdiff_t>(limit);
      std::partial_sort(all.begin(), cut, all.end(), [](const Candidate& a, const Candidate& b) {
        return a.distance != b.distance ? a.distance > b.distance : a.place() < b.place();
      });
      all.erase(cut, all.end());
      std::sort(all.begin(), all.end(),
                [](const Candidate& a, const Candidate& b) { return a.place() < b.place(); });
    }
    std::vector<Column> columns;
    for (const Candidate& c : all) columns.push_back({c.part, c.element, header(c)});
    return columns;
  }

 private:
  struct Candidate {
    std::size_t part = 0;
    std::optional<std::int64_t> element;
    double distance = 0;

    std::pair<std::size_t, std::optional<std::int64_t>> place() const { return {part, element}; }
  };

  static bool fits_whole(const Part& part) {
    return !part || (part->size() <= kWholeElements && array_text(*part, 6).size() <= kWholeWidth);
  }

  const Part& shaped(std::size_t part) const { return truth_[part] ? truth_[part] : seen_[part]; }

  std::vector<Candidate> candidates() const {
    std::vector<Candidate> all;
    for (std::size_t p = 0; p < truth_.size(); ++p) {
      const std::int64_t size = shaped(p) ? shaped(p)->size() : 0;
      if (whole_ || size == 0) {
        double furthest = 0;
        for (std::int64_t i = 0; i < size; ++i)
          furthest = std::max(furthest, distance_at(seen_[p], truth_[p], i));
        all.push_back({p, std::nullopt, furthest});
        continue;
      }
      for (std::int64_t i = 0; i < size; ++i)
        all.push_back({p, i, distance_at(seen_[p], truth_[p], i)});
    }
    return all;
  }

  std::string header(const Candidate& c) const {
    if (c.element && truth_.size() == 1)  // the title names the input
      return index_text(index_of(shaped(c.part)->shape(), *c.element));
    std::string text = part_name(c.part);
    if (c.element) text += " " + index_text(index_of(shaped(c.part)->shape(), *c.element));
    return text;
  }

  std::string name_of_whole_;  // empty: the parts are the ranks'
  std::vector<Part> seen_;
  std::vector<Part> truth_;
  bool whole_ = true;
};

// --- Cells ---

std::string cell(const Row& row, const Column& column, int digits) {
  if (column.part >= row.parts.size() || !row.parts[column.part]) return "none";
  const Array& array = *row.parts[column.part];
  if (!column.element) return array_text(array, digits);
  return *column.element < array.size() ? number_text(array[*column.element], digits) : "-";
}

// Returns as few digits as show the difference between the observed and the declared truth wherever
// they differ beyond the bound.
int digits_needed(const GradientComparison& c, const std::vector<Row>& rows,
                  const std::vector<Column>& columns, const std::string& declared) {
  const Row* seen = rows.front().label == "observed" ? &rows.front() : nullptr;
  const auto truth =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.label == declared; });
  if (!seen || truth == rows.end() || c.equal) return 6;
  for (const int digits : {6, 9, 12}) {
    const bool differ = std::any_of(columns.begin(), columns.end(), [&](const Column& column) {
      return cell(*seen, column, digits) != cell(*truth, column, digits);
    });
    if (differ) return digits;
  }
  return kShortest;
}

struct Grid {
  std::vector<std::string> labels;              // the header's first
  std::vector<std::vector<std::string>> cells;  // [column][line]
  std::vector<std::string> notes;               // by line
  std::size_t label_width = 0;
  std::vector<std::size_t> widths;
  // Name the lines to compare if what differs is coloured; 0: none.
  std::size_t observed = 0, declared = 0;

  std::size_t width_of_columns(std::size_t first, std::size_t last) const {
    std::size_t width = kIndent + label_width;
    for (std::size_t i = first; i < last; ++i) width += kGap + widths[i];
    return width;
  }
  std::size_t note_width() const {
    std::size_t widest = 0;
    for (const std::string& note : notes) widest = std::max(widest, width_of(note));
    return widest == 0 ? 0 : widest + kGap;
  }
};

Grid grid_of(const std::string& title, const std::vector<Row>& rows,
             const std::vector<Column>& columns, int digits) {
  Grid grid;
  grid.labels.push_back(title);
  grid.notes.emplace_back();
  for (const Row& row : rows) {
    grid.labels.push_back(row.label);
    grid.notes.push_back(row.note);
  }
  for (const Column& column : columns) {
    std::vector<std::string> lines = {column.header};
    for (const Row& row : rows) lines.push_back(cell(row, column, digits));
    std::size_t widest = 0;
    for (const std::string& line : lines) widest = std::max(widest, width_of(line));
    grid.widths.push_back(widest);
    grid.cells.push_back(std::move(lines));
  }
  for (const std::string& label : grid.labels)
    grid.label_width = std::max(grid.label_width, width_of(label));
  return grid;
}

// Returns true for a cell of the observed row that reads differently from the declared row's.
bool is_off(const Grid& grid, std::size_t column, std::size_t line) {
  return grid.observed == line && grid.declared != 0 &&
         grid.cells[column][line] != grid.cells[column][grid.declared];
}

std::string block(const Grid& grid, std::size_t first, std::size_t last, bool with_notes) {
  constexpr std::string_view kRed = "\033[31m";
  std::string out;
  for (std::size_t line = 0; line < grid.labels.size(); ++line) {
    std::string text = std::string(kIndent, ' ') + padded(grid.labels[line], grid.label_width);
    for (std::size_t i = first; i < last; ++i) {
      const std::string cell = padded_left(grid.cells[i][line], grid.widths[i]);
      text += std::string(kGap, ' ') +
              (is_off(grid, i, line) ? fmt::format("{}{}{}", kRed, cell, kUncolored) : cell);
    }
    if (with_notes && !grid.notes[line].empty()) text += std::string(kGap, ' ') + grid.notes[line];
    out += text + '\n';
  }
  return out;
}

std::string notes_below(const Grid& grid) {
  std::string out;
  for (std::size_t line = 0; line < grid.labels.size(); ++line)
    if (!grid.notes[line].empty())
      out +=
          fmt::format("  {}   {}\n", padded(grid.labels[line], grid.label_width), grid.notes[line]);
  return out;
}

// Puts notes beside the rows if they fit, else below the table, which is then cut into as many
// blocks as needed.
std::string printed(const Grid& grid, std::size_t width) {
  const std::size_t count = grid.widths.size();
  if (grid.width_of_columns(0, count) + grid.note_width() <= width)
    return block(grid, 0, count, true);
  std::string out;
  for (std::size_t first = 0; first < count;) {
    std::size_t last = first + 1;
    while (last < count && grid.width_of_columns(first, last + 1) <= width) ++last;
    out += block(grid, first, last, false);
    first = last;
  }
  return out + notes_below(grid);
}

// Returns true if every rank must hold the one truth, and all hold the same.
bool ranks_agree(const GradientComparison& c) {
  const auto& parts = c.observed_by_rank;
  return c.truth_full && !c.observed_full && parts.size() > 1 &&
         std::all_of(parts.begin(), parts.end(),
                     [&](const Part& p) { return same({p}, {parts[0]}); });
}

// Names the one tensor for all ranks; "" if each rank's is shown.
std::string name_of_whole(const GradientComparison& c) {
  if (c.observed_full)
    return c.layout == "replicate" ? "summed" : c.layout.starts_with("shard:") ? "joined" : "full";
  if (ranks_agree(c)) return "every rank";
  return c.truth_full && c.observed_by_rank.empty() ? "full" : "";
}

struct Debate {
  Grid grid;
  std::string remark;  // says that not all is shown
};

Debate debate_of(const GradientComparison& original, const ObjectivesTableOptions& options) {
  GradientComparison c = original;
  const std::string whole = name_of_whole(c);
  if (ranks_agree(c)) c.observed_full = c.observed_by_rank[0];
  const std::vector<Row> rows = rows_of(c, options.declared);
  const Columns all(c, rows, spread(declared_truth(c), rows.front().parts.size()), whole);
  std::size_t total = 0;
  const std::vector<Column> columns = all.chosen(options.full ? kFullColumns : kColumns, total);
  std::string title = c.input;
  if (!c.layout.empty() && c.layout != "local") title += " (" + c.layout + ")";
  if (!all.whole() && rows.front().parts.size() == 1) title += ", " + all.part_name(0);
  const int digits = options.full ? kShortest : digits_needed(c, rows, columns, options.declared);
  Debate debate{grid_of(title, rows, columns, digits), ""};
  if (options.color && !c.equal) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].label == "observed") debate.grid.observed = i + 1;
      if (rows[i].label == options.declared) debate.grid.declared = i + 1;
    }
  }
  if (columns.size() < total)
    debate.remark = fmt::format("{} of {} {} shown, those furthest off; {}", columns.size(), total,
                                all.whole() ? "ranks" : "elements",
                                options.full ? "--json has all" : "--full shows all");
  return debate;
}

}  // namespace

std::string objectives_table(const GradientComparison& c, const ObjectivesTableOptions& options) {
  const Debate debate = debate_of(c, options);
  std::string out = printed(debate.grid, options.width);
  if (!debate.remark.empty()) out += fmt::format("  ({})\n", debate.remark);
  return out;
}

ObjectivesTable objectives_rows(const GradientComparison& c,
                                const ObjectivesTableOptions& options) {
  const Debate debate = debate_of(c, options);
  const Grid& grid = debate.grid;
  ObjectivesTable table{grid.labels.front(), {}, {}, debate.remark};
  for (const auto& column : grid.cells) table.columns.push_back(column.front());
  for (std::size_t line = 1; line < grid.labels.size(); ++line) {
    ObjectivesTable::Row row{grid.labels[line], {}, grid.notes[line]};
    for (const auto& column : grid.cells) row.cells.push_back(column[line]);
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace distgrad
