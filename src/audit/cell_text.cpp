#include "audit/cell_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace distgrad {
namespace {

enum class State {
  kNotTried,
  kRight,
  kWrong,
  kRaises,
  kBroken,
  kDisputed,
  kRefused,
  kPartlyRefused
};

struct StateRow {
  State state;
  std::string_view name;     // in JSON
  std::string_view word;     // on the screen; "": a count
  std::string_view meaning;  // "": needs none
};

constexpr StateRow kStates[] = {
    {State::kNotTried, "-", "-", ""},
    {State::kRight, "ok", "ok", ""},
    {State::kWrong, "WRONG", "", ""},
    {State::kRaises, "raises", "err", "some case raises in forward"},
    {State::kBroken, "BROKEN", "die", "in some case ranks die or hang in forward"},
    {State::kDisputed, "disputed", "?", "some case is disputed"},
    {State::kRefused, "refused", "no", "refused, not tried"},
    {State::kPartlyRefused, "partly refused", "some", "right, but for cases that are refused"},
};

const StateRow& state_of(const Cell& cell) {
  const auto has = [&](Outcome o) { return count_of(cell.counts, o) > 0; };
  const auto row = [](State s) -> const StateRow& { return kStates[static_cast<std::size_t>(s)]; };
  if (cell.tried() == 0) return row(State::kNotTried);
  if (has(Outcome::kWrong) || has(Outcome::kFailsInBackward)) return row(State::kWrong);
  if (has(Outcome::kBreaks)) return row(State::kBroken);
  if (has(Outcome::kRaises)) return row(State::kRaises);
  if (has(Outcome::kDisputed)) return row(State::kDisputed);
  if (cell.judged() == 0) return row(State::kRefused);
  return row(cell.right() < cell.tried() ? State::kPartlyRefused : State::kRight);
}

}  // namespace

std::string cell_text(const Cell& cell) {
  const StateRow& state = state_of(cell);
  return state.word.empty() ? fmt::format("{}/{}", cell.right(), cell.tried())
                            : std::string(state.word);
}

std::string_view state_name(const Cell& cell) { return state_of(cell).name; }

std::string legend(const std::vector<const Cell*>& cells) {
  std::vector<std::string> meanings;
  for (const StateRow& row : kStates) {
    const bool is_used = std::any_of(
        cells.begin(), cells.end(), [&](const Cell* c) { return state_of(*c).state == row.state; });
    if (is_used && !row.meaning.empty())
      meanings.push_back(fmt::format("{}: {}", row.word, row.meaning));
  }
  return fmt::format("{}", fmt::join(meanings, "; "));
}

}  // namespace distgrad
