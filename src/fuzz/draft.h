// Holds a program while it is drawn: what is known of the world and of every name without computing
// anything.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/choices.h"
#include "fuzz/random.h"
#include "model/array.h"

namespace distgrad::fuzz {

using Json = nlohmann::ordered_json;

// Says what the program's values are like, so that both the bitwise and the bounded comparison get
// their share.
enum class Style {
  kExact,   // polynomials of small integers, halves and quarters
  kSmooth,  // anything differentiable
  kKinked,  // includes relu, max, sort, ..., at ties and zeros, too
};

// Describes a tensor, or an expression for one. No element's magnitude exceeds `largest`.
struct Value {
  std::string text;
  std::vector<Shape> shapes;  // by rank
  double largest = 1;

  int least_dims() const {
    std::size_t least = shapes[0].size();
    for (const Shape& shape : shapes) least = std::min(least, shape.size());
    return static_cast<int>(least);
  }
  bool has_one_shape() const {
    return std::all_of(shapes.begin(), shapes.end(),
                       [&](const Shape& s) { return s == shapes[0]; });
  }
  // Returns the least extent of dim `dim` over the ranks, all of which must have it.
  std::int64_t least_extent(int dim) const {
    std::int64_t least = shapes[0][static_cast<std::size_t>(dim)];
    for (const Shape& shape : shapes) least = std::min(least, shape[static_cast<std::size_t>(dim)]);
    return least;
  }
};

struct NamedGroup {
  std::string name;
  std::vector<std::vector<int>> partition;
  bool is_axis = false;

  bool has_one_size() const {
    return std::all_of(partition.begin(), partition.end(),
                       [&](const auto& l) { return l.size() == partition[0].size(); });
  }
};

struct Draft {
  Draft(const Choices& what, std::uint64_t seed, std::uint64_t index)
      : choices(what), random(seed, index) {}

  const Choices& choices;
  Random random;
  int world_size = 1;
  std::vector<std::pair<std::string, int>> mesh;
  std::vector<NamedGroup> groups;  // axes first
  DType dtype = DType::kFloat64;
  Style style = Style::kExact;
  double limit = 1000;  // of magnitudes

  // Has inputs whose gradients a sync may add up, with the axes (empty: the world) along which they
  // are replicated.
  std::vector<std::pair<std::string, std::vector<std::string>>> replicated;

  Json file;
  std::vector<Value> names;  // inputs and steps

  int most_elements = 40;  // of a tensor on a rank

  bool fits(const Value& value) const {
    if (!(value.largest <= limit)) return false;
    return std::all_of(value.shapes.begin(), value.shapes.end(), [&](const Shape& s) {
      return s.size() <= 4 && element_count(s) <= most_elements;
    });
  }

  // Returns the lists of ranks of a group; without a group the world.
  std::vector<std::vector<int>> lists_of(const NamedGroup* group) const {
    if (group) return group->partition;
    std::vector<std::vector<int>> world(1);
    for (int r = 0; r < world_size; ++r) world[0].push_back(r);
    return world;
  }
};

// Each adds its part to `file`, in the order of the files.
void draw_world(Draft&);
void draw_inputs(Draft&);
void draw_invariant_region(Draft&);  // its inputs and steps

// Draws an expression over the existing names, at most `depth` operators deep.
Value draw_expression(Draft&, int depth);
// Draws a scalar on every rank, which usually depends on rank and element.
Value draw_loss(Draft&);

// Draws a collective over some expression as a new step. Returns false if none fitted.
bool draw_collective(Draft&, const std::string& name);

// Draws from `draft.choices.objectives`, then the syncs that go with it. If losses must agree, it
// adds steps that make them agree and replaces the loss.
void draw_objective(Draft&, std::string loss);

// Adds `value` under the name as a step of its own.
void add_step(Draft&, const std::string& name, Value value);

}  // namespace distgrad::fuzz
