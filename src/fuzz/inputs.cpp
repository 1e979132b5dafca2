// Draws inputs: values in every form, layouts, sync.
#include <fmt/format.h>

#include "fuzz/draft.h"
#include "model/layout_name.h"

namespace distgrad::fuzz {
namespace {

// Lies along one axis, or (name empty) the world.
struct Placement {
  using Kind = Layout::Kind;
  std::string axis;
  int size = 1;
  Kind kind = Kind::kLocal;
  int dim = 0;

  Json word() const {
    const std::string name(layout_name(kind));
    return kind == Kind::kShard ? Json{{name, dim}} : Json(name);
  }
};

std::int64_t draw_extent(Draft& draft) {
  const int n = draft.world_size;
  constexpr std::array kUsual = {1, 2, 2, 3, 4, 5, 6, 7};
  if (draft.random.chance(35)) return draft.random.chance(50) ? n : 2 * n;  // it divides evenly
  return draft.random.chance(4) ? 0 : draft.random.pick(kUsual);
}

Shape draw_shape(Draft& draft) {
  constexpr std::array kDims = {0, 1, 1, 1, 2, 2, 3};
  Shape shape;
  const int dims = draft.random.pick(kDims);
  for (int d = 0; d < dims; ++d) {
    shape.push_back(draw_extent(draft));
    if (element_count(shape) > draft.most_elements) shape.back() = 1;
  }
  return shape;
}

Placement draw_placement(Draft& draft, std::size_t dims) {
  Placement p{"", draft.world_size, Placement::Kind::kReplicate, 0};
  if (dims > 0 && draft.random.chance(50)) {
    p.kind = Placement::Kind::kShard;
    p.dim = static_cast<int>(draft.random.below(dims));
    if (draft.random.chance(25)) p.dim -= static_cast<int>(dims);
  }
  return p;
}

std::vector<Placement> draw_layout(Draft& draft, std::size_t dims) {
  if (draft.random.chance(55)) return {Placement{"", draft.world_size, Placement::Kind::kLocal, 0}};
  if (draft.mesh.empty() || draft.random.chance(40)) return {draw_placement(draft, dims)};
  std::vector<Placement> layout;
  for (const auto& [axis, size] : draft.mesh) {
    layout.push_back(draw_placement(draft, dims));
    layout.back().axis = axis;
    layout.back().size = size;
  }
  return layout;
}

// Follows torch.chunk: pieces of ceil(n / size), the last ones shorter or empty.
std::int64_t chunk(std::int64_t length, int size, int place) {
  const std::int64_t each = (length + size - 1) / size;
  return std::clamp<std::int64_t>(length - place * each, 0, each);
}

std::vector<Shape> held_shapes(const Draft& draft, const Shape& full,
                               const std::vector<Placement>& layout) {
  std::vector<Shape> shapes;
  for (int rank = 0; rank < draft.world_size; ++rank) {
    Shape held = full;
    int inner = draft.world_size;
    for (const Placement& p : layout) {
      inner /= p.size;
      if (p.kind != Placement::Kind::kShard) continue;
      auto& extent =
          held[static_cast<std::size_t>(p.dim < 0 ? p.dim + static_cast<int>(full.size()) : p.dim)];
      extent = chunk(extent, p.size, rank / inner % p.size);
    }
    shapes.push_back(std::move(held));
  }
  return shapes;
}

double draw_number(Draft& draft) {
  constexpr std::array kNumbers = {-3.0, -2.0, -1.5, -1.0, -1.0, -0.5, 0.0,
                                   0.5,  1.0,  1.0,  1.5,  2.0,  2.0,  3.0};
  return draft.random.pick(kNumbers);
}

Json draw_literal(Draft& draft, const Shape& shape, std::size_t from = 0) {
  if (from == shape.size()) {
    const double number = draw_number(draft);
    return number == static_cast<int>(number) ? Json(static_cast<int>(number)) : Json(number);
  }
  Json list = Json::array();
  for (std::int64_t i = 0; i < shape[from]; ++i)
    list.push_back(draw_literal(draft, shape, from + 1));
  return list;
}

Json shape_json(const Shape& shape) {
  Json list = Json::array();
  for (const std::int64_t extent : shape) list.push_back(extent);
  return list;
}

// Makes one extent differ by rank, as an expression.
void vary_by_rank(Draft& draft, Json& sizes, std::vector<Shape>& shapes) {
  struct Form {
    const char* text;
    int (*extent)(int rank);
  };
  static constexpr std::array kForms = {Form{"rank + 1", [](int rank) { return rank + 1; }},
                                        Form{"rank % 2 + 1", [](int rank) { return rank % 2 + 1; }},
                                        Form{"rank", [](int rank) { return rank; }},
                                        Form{"world_size", [](int) { return -1; }}};
  const std::size_t d = draft.random.below(shapes[0].size());
  const Form& form = draft.random.pick(kForms);
  sizes[d] = form.text;
  for (int rank = 0; rank < draft.world_size; ++rank) {
    const int extent = form.extent(rank);
    shapes[static_cast<std::size_t>(rank)][d] = extent < 0 ? draft.world_size : extent;
  }
}

Json draw_random(Draft& draft, bool is_local, Value& value) {
  Json random;
  random["shape"] = shape_json(value.shapes[0]);
  if (is_local && !value.shapes[0].empty() && draft.random.chance(20))
    vary_by_rank(draft, random["shape"], value.shapes);
  if (draft.style == Style::kExact || draft.random.chance(35)) {
    const int width = draft.random.pick({1, 2, 2, 3, 4});
    random["kind"] = "integers";
    random["low"] = -width;
    random["high"] = width;
    value.largest = width;
  } else if (draft.random.chance(75)) {
    random["kind"] = "normal";
    value.largest = 6;
  } else {
    random["kind"] = "uniform";
    random["low"] = -1;
    random["high"] = 2;
    value.largest = 2;
  }
  random["seed"] = draft.random.below(1000);
  return random;
}

// Draws the value in one of the format's forms, without its layout. Fills in a local input's shapes
// by rank.
Json draw_value(Draft& draft, bool is_local, const Shape& shape, Value& value) {
  Json spec;
  value.largest = 3;
  const int form = draft.random.between(0, 99);
  if (form < 60 ||
      (element_count(shape) == 0 && form >= 72)) {  // lists cannot show the dims after an empty one
    spec["random"] = draw_random(draft, is_local, value);
  } else if (form < 72) {
    std::string sizes;
    for (const std::int64_t extent : shape)
      sizes += (sizes.empty() ? "" : ", ") + std::to_string(extent);
    spec["expr"] = is_local ? fmt::format("torch.full([{}], 0.5) * (rank - 1)", sizes)
                            : fmt::format("torch.arange({}).reshape([{}]) * 0.5 - 1",
                                          element_count(shape), sizes);
    value.largest =
        is_local ? draft.world_size : 0.5 * static_cast<double>(element_count(shape)) + 1;
  } else if (form < 85 && is_local) {
    for (int r = 0; r < draft.world_size; ++r)
      spec["by_rank"].push_back(draw_literal(draft, shape));
  } else {
    spec["value"] = draw_literal(draft, shape);
  }
  return spec;
}

void note_replicated(Draft& draft, const std::string& name, const std::vector<Placement>& layout) {
  std::vector<std::string> axes;
  for (const Placement& p : layout)
    if (p.kind == Placement::Kind::kReplicate) axes.push_back(p.axis);
  if (!axes.empty()) draft.replicated.emplace_back(name, std::move(axes));
}

Json layout_json(const std::vector<Placement>& layout) {
  if (layout[0].axis.empty()) return layout[0].word();
  Json by_axis;
  for (const Placement& p : layout) by_axis[p.axis] = p.word();
  return by_axis;
}

void draw_input(Draft& draft, const std::string& name, bool must_require_grad) {
  const Shape shape = draw_shape(draft);
  const std::vector<Placement> layout = draw_layout(draft, shape.size());
  const bool is_local = layout[0].kind == Placement::Kind::kLocal;
  Value value;
  value.text = name;
  value.shapes.assign(static_cast<std::size_t>(draft.world_size), shape);
  Json spec = draw_value(draft, is_local, shape, value);
  if (!is_local) {
    spec["layout"] = layout_json(layout);
    value.shapes = held_shapes(draft, shape, layout);
  }
  const bool requires_grad = must_require_grad || !draft.random.chance(12);
  if (!requires_grad) spec["requires_grad"] = false;
  draft.file["inputs"][name] = spec.size() == 1 && spec.contains("value") ? spec["value"] : spec;
  if (requires_grad) note_replicated(draft, name, layout);
  draft.names.push_back(std::move(value));
}

}  // namespace

void draw_inputs(Draft& draft) {
  static constexpr std::array kNames = {"x", "w", "b"};
  const int count = draft.random.chance(60) ? 1 : draft.random.chance(80) ? 2 : 3;
  for (int i = 0; i < count; ++i) draw_input(draft, kNames[static_cast<std::size_t>(i)], i == 0);
}

void draw_invariant_region(Draft& draft) {
  Random& random = draft.random;
  const Shape shape = {draw_extent(draft) + 1, random.between(1, 3)};
  Value x;
  x.text = "x";
  x.shapes.assign(static_cast<std::size_t>(draft.world_size), shape);
  Json spec;
  spec["random"] = draw_random(draft, false, x);
  spec["layout"] = layout_name(Layout::Kind::kInvariant);
  draft.file["inputs"]["x"] = std::move(spec);
  draft.names.push_back(x);
  draft.file["steps"] = Json::array();

  // Every rank computes something different from all of x; the results are added up and used alike
  // by all.
  Json copy;
  copy["a"]["copy"] = "x";
  draft.file["steps"].push_back(copy);
  x.text = "a";
  draft.names.assign(1, x);
  const Value own = draw_loss(draft);
  Json sum;
  sum["total"]["all_reduce"] = fmt::format("({}) * (rank + 1)", own.text);
  draft.file["steps"].push_back(sum);
  draft.file["loss"] = random.chance(50) ? "total" : "0.25 * total * total + total";
  draft.file["objective"] = "replicated";
}

}  // namespace distgrad::fuzz
