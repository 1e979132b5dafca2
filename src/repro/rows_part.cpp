// Writes what is compared with what.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "judge/assemble.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// Compares every rank's gradient with `truth`, a Python expression of `rank`.
std::string row_of_each_rank(const std::string& name, const std::string& truth,
                             const std::string& bound) {
  return fmt::format(
      "    for rank in range(world_size):\n        yield {0}, f\"rank {{rank}}\", "
      "gradients[rank][{0}], {1}, {2}\n",
      name, truth, bound);
}

// Returns the piece's slices in the whole, such as "slice(0, 2), "; empty where it is the whole.
std::string place_of(const Piece& piece, const Shape& full) {
  std::string place;
  for (std::size_t d = 0; piece.extent != full && d < full.size(); ++d)
    place += fmt::format("slice({}, {}), ", piece.start[d], piece.start[d] + piece.extent[d]);
  return place;
}

// Joins or sums the ranks' gradients before they are compared.
std::string row_of(const Part& part, const Shape& full, const std::string& name,
                   const std::string& bound) {
  std::vector<std::string> pieces;
  for (const Piece& piece : part.pieces)
    pieces.push_back(
        fmt::format("([{}], ({}))", fmt::join(piece.ranks, ", "), place_of(piece, full)));
  const char* where = part.pieces.size() > 1  ? "joined"
                      : part.ranks.size() > 1 ? "summed"
                                              : "alone";
  return fmt::format(
      "    pieces = [{}]\n    yield {}, \"{}\", put_together(pieces, [of_rank[{}] for of_rank "
      "in gradients], true[{}]), true[{}], {}\n",
      fmt::join(pieces, ", "), name, where, name, name, name, bound);
}

std::string rows_of(const Program& program, const Input& input, const Shape& full,
                    const std::string& bound) {
  const std::string name = string_literal(title_of(input));
  if (input.is_local()) return row_of_each_rank(name, fmt::format("true[{}][rank]", name), bound);
  const GradientByRank none(static_cast<std::size_t>(program.world_size));
  const std::vector<Part> parts = assemble(program, input, full, none);
  const bool alone =
      std::all_of(parts.begin(), parts.end(), [](const Part& p) { return p.ranks.size() == 1; });
  if (alone && parts.size() == static_cast<std::size_t>(program.world_size) &&
      parts[0].pieces.at(0).extent == full)
    return row_of_each_rank(name, fmt::format("true[{}]", name), bound);
  std::string text;
  for (const Part& part : parts) text += row_of(part, full, name, bound);
  return text;
}

// Returns one bound for all elements. Where all elements are within their bounds it is the largest
// one, so that another order of a sum on another machine accuses nobody. Otherwise it is that of
// the element that is furthest off, so that a larger bound does not hide it.
double bound_of(const GradientComparison& compared) {
  double bound = compared.bound;
  if (!compared.equal) return bound;
  for (const std::optional<Array>& part : compared.bounds)
    for (const double b : part ? part->values() : std::span<const double>())
      bound = std::max(bound, b);
  return bound;
}

}  // namespace

std::string rows_part(const ReproCase& repro, const Program& program) {
  std::string text =
      "def rows(gradients, true):\n"
      "    \"\"\"What is compared: input, where, observed (of `gradients` by rank), the truth, the "
      "bound on the rounding error.\"\"\"\n";
  std::size_t g = 0;  // index among the inputs that require grad
  for (const Input& input : program.inputs) {
    if (!input.requires_grad) continue;
    // A case that fails has no comparison, yet its truth is known. A truth that the script measures
    // again is off by as much again.
    const double measured = needs_differences(program.steps) ? 2 : 1;
    const std::string bound = number_literal(
        g < repro.result.gradients.size() ? measured * bound_of(repro.result.gradients[g]) : 0.0);
    const std::optional<Array>& whole = repro.simulation.gradients.at(0).at(g).parts.at(0);
    text += rows_of(program, input, whole ? whole->shape() : Shape{}, bound);
    ++g;
  }
  return g > 0 ? text : text + "    return []\n";
}

}  // namespace distgrad
