// Draws random expressions. Every operator is a row: its text, and what it does to shapes and to
// the largest magnitude.

#include <cmath>

#include "fuzz/draft.h"

namespace distgrad::fuzz {
namespace {

// Fills in a row's text: ? is the first operand, # the second, $ a dim, % a rank, & the prefix of a
// group's rank and size.
std::string filled(std::string_view text, const std::string& a, const std::string& b, int dim,
                   int rank, const std::string& group) {
  std::string out;
  for (const char c : text) switch (c) {
      case '?':
        out += a;
        break;
      case '#':
        out += b;
        break;
      case '$':
        out += std::to_string(dim);
        break;
      case '%':
        out += std::to_string(rank);
        break;
      case '&':
        out += group;
        break;
      default:
        out += c;
    }
  return out;
}

using Growth = double (*)(double largest, double world_size);

struct Elementwise {
  std::string_view text;
  Growth growth;
};

double same(double x, double) { return x; }
double one(double, double) { return 1; }

constexpr std::array kExactElementwise = {
    Elementwise{"(-?)", same},
    Elementwise{"(2 * ?)", [](double x, double) { return 2 * x; }},
    Elementwise{"(0.5 * ?)", [](double x, double) { return x / 2; }},
    Elementwise{"(? / 2)", [](double x, double) { return x / 2; }},
    Elementwise{"(? - 1)", [](double x, double) { return x + 1; }},
    Elementwise{"(1 - ?)", [](double x, double) { return x + 1; }},
    Elementwise{"(? * ?)", [](double x, double) { return x * x; }},
    Elementwise{"(? ** 2)", [](double x, double) { return x * x; }},
    Elementwise{"torch.square(?)", [](double x, double) { return x * x; }},
    Elementwise{"((rank + 1) * ?)", [](double x, double n) { return n * x; }},
    Elementwise{"(? + rank)", [](double x, double n) { return n + x; }},
    Elementwise{"(rank * ?)", [](double x, double n) { return n * x; }},
    Elementwise{"(world_size * ?)", [](double x, double n) { return n * x; }},
    Elementwise{"?.clone()", same},
};

constexpr std::array kSmoothElementwise = {
    Elementwise{"torch.tanh(?)", one},
    Elementwise{"torch.sin(?)", one},
    Elementwise{"torch.cos(?)", one},
    Elementwise{"torch.sigmoid(?)", one},
    Elementwise{"torch.erf(?)", one},
    Elementwise{"torch.atan(?)", [](double, double) { return 1.6; }},
    Elementwise{"torch.exp(torch.tanh(?))", [](double, double) { return 2.8; }},
    Elementwise{"torch.expm1(torch.sin(?))", [](double, double) { return 1.8; }},
    Elementwise{"torch.exp(-? * ?)", one},
    Elementwise{"torch.sqrt(? * ? + 1)", [](double x, double) { return x + 1; }},
    Elementwise{"torch.log1p(? * ?)", same},
    Elementwise{"torch.reciprocal(1 + ? * ?)", one},
    Elementwise{"torch.rsqrt(2 + ? * ?)", one},
    Elementwise{"torch.nn.functional.softplus(?)", [](double x, double) { return x + 1; }},
    Elementwise{"torch.nn.functional.gelu(?)", same},
    Elementwise{"torch.nn.functional.silu(?)", same},
    Elementwise{"(? / 3)", same},
    Elementwise{"(0.1 * ?)", same},
    Elementwise{"(? / (rank + 2))", same},
    Elementwise{"(? / world_size)", same},
    Elementwise{"(? ** 3)", [](double x, double) { return x * x * x; }},
};

constexpr std::array kKinkedElementwise = {
    Elementwise{"torch.relu(?)", same},
    Elementwise{"torch.abs(?)", same},
    Elementwise{"torch.clamp(?, -1, 1)", one},
    Elementwise{"torch.nn.functional.leaky_relu(?, 0.25)", same},
    Elementwise{"torch.nn.functional.hardtanh(?)", one},
    Elementwise{"torch.where(? > 0, ?, 2 * ?)", [](double x, double) { return 2 * x; }},
    Elementwise{"torch.minimum(?, torch.zeros_like(?))", same},
    Elementwise{"torch.maximum(?, -?)", same},
};

// Changes one rank's shape as an operator along a dim does. Returns false if it does not apply.
using Reshape = bool (*)(Shape& shape, std::size_t dim);

struct Structural {
  std::string_view text;
  Reshape reshape;
  double (*growth)(double largest, std::int64_t extent);
  Style style = Style::kExact;
};

double kept(double x, std::int64_t) { return x; }
double added(double x, std::int64_t n) {
  return x * static_cast<double>(std::max<std::int64_t>(n, 1));
}

bool unchanged(Shape&, std::size_t) { return true; }
bool not_empty(Shape& s, std::size_t d) { return s[d] > 0; }
bool removed(Shape& s, std::size_t d) {
  s.erase(s.begin() + static_cast<std::ptrdiff_t>(d));
  return true;
}
bool removed_unless_empty(Shape& s, std::size_t d) { return not_empty(s, d) && removed(s, d); }
bool made_one(Shape& s, std::size_t d) {
  s[d] = 1;
  return true;
}
bool inserted_one(Shape& s, std::size_t d) {
  s.insert(s.begin() + static_cast<std::ptrdiff_t>(d), 1);
  return true;
}
bool inserted_two(Shape& s, std::size_t d) {
  s.insert(s.begin() + static_cast<std::ptrdiff_t>(d), 2);
  return true;
}
bool doubled(Shape& s, std::size_t d) {
  s[d] *= 2;
  return true;
}
bool flattened(Shape& s, std::size_t) {
  s = {element_count(s)};
  return true;
}
bool swapped(Shape& s, std::size_t) {
  if (s.size() < 2) return false;
  std::swap(s[0], s[1]);
  return true;
}
bool reversed(Shape& s, std::size_t) {
  if (s.size() < 2) return false;
  std::reverse(s.begin(), s.end());
  return true;
}

constexpr std::array kStructural = {
    Structural{"?.sum($)", removed, added},
    Structural{"?.sum($)", removed, added},
    Structural{"?.sum($, keepdim=True)", made_one, added},
    Structural{"torch.cumsum(?, $)", unchanged, added},
    Structural{"?.flip([$])", unchanged, kept},
    Structural{"torch.roll(?, 1, $)", unchanged, kept},
    Structural{"?.select($, 0)", removed_unless_empty, kept},
    Structural{"?.narrow($, 0, 1)",
               [](Shape& s, std::size_t d) { return not_empty(s, d) && made_one(s, d); }, kept},
    Structural{
        "?[1:]",
        [](Shape& s, std::size_t) { return s[0] = std::max<std::int64_t>(s[0] - 1, 0), true; },
        kept},
    Structural{"?[::2]", [](Shape& s, std::size_t) { return s[0] = (s[0] + 1) / 2, true; }, kept},
    Structural{"?[..., :-1]",
               [](Shape& s, std::size_t) {
                 return s.back() = std::max<std::int64_t>(s.back() - 1, 0), true;
               },
               kept},
    Structural{"?.reshape([-1])", flattened, kept},
    Structural{"?.unsqueeze($)", inserted_one, kept},
    Structural{"?.transpose(0, 1)", swapped, kept},
    Structural{"?.transpose(0, 1)", swapped, kept},
    Structural{"?.transpose(0, 1).contiguous()", swapped, kept},
    Structural{"?.mT",
               [](Shape& s, std::size_t) {
                 return s.size() >= 2 && (std::swap(s[s.size() - 1], s[s.size() - 2]), true);
               },
               kept},
    Structural{"?.permute([2, 1, 0])",
               [](Shape& s, std::size_t d) { return s.size() == 3 && reversed(s, d); }, kept},
    Structural{"torch.cat([?, ?], $)", doubled, kept},
    Structural{"torch.cat([2 * ?, -?], $)", doubled, [](double x, std::int64_t) { return 2 * x; }},
    Structural{"torch.stack([?, 1 - ?], $)", inserted_two,
               [](double x, std::int64_t) { return x + 1; }},
    Structural{"?.unsqueeze(0).expand([2, -1])",
               [](Shape& s, std::size_t d) { return s.size() == 1 && inserted_two(s, 0 * d); },
               kept},
    Structural{"?.expand([2, -1])",
               [](Shape& s, std::size_t) { return s.size() == 2 && s[0] == 1 && (s[0] = 2, true); },
               kept},
    Structural{"(? - ?.sum($, keepdim=True))", unchanged,
               [](double x, std::int64_t n) { return x + added(x, n); }},
    // These are usually inexact.
    Structural{"?.mean($)", removed_unless_empty, kept, Style::kSmooth},
    Structural{"(? - ?.mean($, keepdim=True))", not_empty,
               [](double x, std::int64_t) { return 2 * x; }, Style::kSmooth},
    Structural{"torch.softmax(?, $)", not_empty, [](double, std::int64_t) { return 1.0; },
               Style::kSmooth},
    Structural{"torch.logsumexp(?, $)", removed_unless_empty,
               [](double x, std::int64_t) { return x + 3; }, Style::kSmooth},
    Structural{"torch.log_softmax(?, $)", not_empty,
               [](double x, std::int64_t) { return 2 * x + 3; }, Style::kSmooth},
    Structural{"torch.prod(torch.cos(?), $)", removed, [](double, std::int64_t) { return 1.0; },
               Style::kSmooth},
    Structural{"?.amax($)", removed_unless_empty, kept, Style::kKinked},
    Structural{"torch.min(?, $)[0]", removed_unless_empty, kept, Style::kKinked},
    Structural{"torch.sort(?, $)[0]", unchanged, kept, Style::kKinked},
    Structural{"torch.cummax(?, $)[0]", not_empty, kept, Style::kKinked},
};

constexpr std::array kOfRanks = {
    Elementwise{"(? if rank == % else 2 * ?)", [](double x, double) { return 2 * x; }},
    Elementwise{"(? if &rank == 0 else -?)", same},
    Elementwise{"(? if rank == % else torch.zeros_like(?))", same},
    Elementwise{"(? if &rank + 1 == &size else ?.detach())", same},
    Elementwise{"(?.detach() if rank == % else ?)", same},
    Elementwise{"(? * 0 if rank == % else ?)", same},
    Elementwise{"(&rank * ?)", [](double x, double n) { return n * x; }},
    Elementwise{"(? * &size)", [](double x, double n) { return n * x; }},
};

enum class Pairing { kBroadcast, kProduct, kProductTransposed, kJoined, kOuter };

struct Binary {
  std::string_view text;
  Pairing pairing;
  double (*growth)(double a, double b);
  Style style = Style::kExact;
};

constexpr std::array kBinary = {
    Binary{"(? + #)", Pairing::kBroadcast, [](double a, double b) { return a + b; }},
    Binary{"(? - #)", Pairing::kBroadcast, [](double a, double b) { return a + b; }},
    Binary{"(? * #)", Pairing::kBroadcast, [](double a, double b) { return a * b; }},
    Binary{"(? * #)", Pairing::kBroadcast, [](double a, double b) { return a * b; }},
    Binary{"(? @ #)", Pairing::kProduct, [](double a, double b) { return a * b; }},
    Binary{"(? @ #.t())", Pairing::kProductTransposed, [](double a, double b) { return a * b; }},
    Binary{"torch.einsum('ij,kj->ik', ?, #)", Pairing::kProductTransposed,
           [](double a, double b) { return a * b; }},
    Binary{"torch.cat([?, #], $)", Pairing::kJoined,
           [](double a, double b) { return std::max(a, b); }},
    Binary{"torch.outer(?, #)", Pairing::kOuter, [](double a, double b) { return a * b; }},
    Binary{"(? / (2 + # * #))", Pairing::kBroadcast, [](double a, double) { return a; },
           Style::kSmooth},
    Binary{"torch.atan2(?, 1 + # * #)", Pairing::kBroadcast, [](double, double) { return 1.6; },
           Style::kSmooth},
    Binary{"torch.logaddexp(?, #)", Pairing::kBroadcast,
           [](double a, double b) { return a + b + 1; }, Style::kSmooth},
    Binary{"torch.lerp(?, #, 0.25)", Pairing::kBroadcast, [](double a, double b) { return a + b; },
           Style::kSmooth},
    Binary{"torch.maximum(?, #)", Pairing::kBroadcast,
           [](double a, double b) { return std::max(a, b); }, Style::kKinked},
    Binary{"torch.where(? > #, ?, #)", Pairing::kBroadcast,
           [](double a, double b) { return std::max(a, b); }, Style::kKinked},
};

// Broadcasts two shapes, or returns nothing if the operator does not take them.
std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1,
                       y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

std::optional<Shape> product(const Shape& a, const Shape& b) {
  if (a.size() == 2 && b.size() == 2 && a[1] == b[0]) return Shape{a[0], b[1]};
  if (a.size() == 2 && b.size() == 1 && a[1] == b[0]) return Shape{a[0]};
  if (a.size() == 1 && b.size() == 1 && a[0] == b[0]) return Shape{};
  return std::nullopt;
}

std::optional<Shape> paired(Pairing pairing, const Shape& a, const Shape& b, std::size_t dim) {
  switch (pairing) {
    case Pairing::kBroadcast:
      return broadcast(a, b);
    case Pairing::kProduct:
      return product(a, b);
    case Pairing::kProductTransposed:
      return a.size() == 2 && b.size() == 2 && a[1] == b[1] ? std::optional(Shape{a[0], b[0]})
                                                            : std::nullopt;
    case Pairing::kOuter:
      return a.size() == 1 && b.size() == 1 ? std::optional(Shape{a[0], b[0]}) : std::nullopt;
    case Pairing::kJoined:
      break;
  }
  if (a.size() != b.size() || dim >= a.size()) return std::nullopt;
  Shape out = a;
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (d == dim)
      out[d] += b[d];
    else if (a[d] != b[d])
      return std::nullopt;
  }
  return out;
}

template <class Table>
const auto& pick_of_style(Draft& draft, const Table& table) {
  for (;;) {
    const auto& row = draft.random.pick(table);
    if (row.style <= draft.style) return row;
  }
}

const Elementwise& pick_elementwise(Draft& draft) {
  Random& random = draft.random;
  if (draft.style == Style::kExact || random.chance(30)) return random.pick(kExactElementwise);
  if (draft.style == Style::kKinked && random.chance(60)) return random.pick(kKinkedElementwise);
  return random.pick(kSmoothElementwise);
}

// Fills in the prefix "g_" of a group's g_rank and g_size. The world has rank and world_size, so no
// prefix would do for both.
std::string with_group(Draft& draft, std::string_view text) {
  const std::string group =
      draft.groups.empty() || draft.random.chance(40) ? "" : draft.random.pick(draft.groups).name;
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '&')
      out += text[i];
    else if (!group.empty())
      out += group + "_";
    else if (text.substr(i + 1).starts_with("size"))
      out += "world_";
  }
  return out;
}

bool apply_elementwise(Draft& draft, const Elementwise& row, Value& a) {
  a.largest = row.growth(a.largest, draft.world_size);
  const int rank = static_cast<int>(draft.random.below(static_cast<std::size_t>(draft.world_size)));
  a.text = filled(with_group(draft, row.text), a.text, "", 0, rank, "");
  return true;
}

bool apply_structural(Draft& draft, Value& a) {
  const Structural& row = pick_of_style(draft, kStructural);
  const int dims = a.least_dims();
  if (dims == 0 || std::any_of(a.shapes.begin(), a.shapes.end(),
                               [&](const Shape& s) { return static_cast<int>(s.size()) != dims; }))
    return false;
  const int dim = static_cast<int>(draft.random.below(static_cast<std::size_t>(dims)));
  std::int64_t extent = 0;
  for (Shape& shape : a.shapes) {
    extent = std::max(extent, shape[static_cast<std::size_t>(dim)]);
    if (!row.reshape(shape, static_cast<std::size_t>(dim))) return false;
  }
  a.largest = row.growth(a.largest, extent);
  // A new dim counts in the result, where a negative one would mean another place.
  const bool keeps_dims = static_cast<int>(a.shapes[0].size()) <= dims;
  a.text =
      filled(row.text, a.text, "", keeps_dims && draft.random.chance(30) ? dim - dims : dim, 0, "");
  return true;
}

bool apply_binary(Draft& draft, Value& a, int depth) {
  const Binary& row = pick_of_style(draft, kBinary);
  const Value b = draw_expression(draft, depth);
  const std::size_t dim = a.shapes[0].empty() ? 0 : draft.random.below(a.shapes[0].size());
  double inner = 1;
  for (std::size_t r = 0; r < a.shapes.size(); ++r) {
    if (row.pairing != Pairing::kBroadcast && row.pairing != Pairing::kJoined &&
        !a.shapes[r].empty())
      inner = std::max(inner, static_cast<double>(a.shapes[r].back()));
    const auto shape = paired(row.pairing, a.shapes[r], b.shapes[r], dim);
    if (!shape) return false;
    a.shapes[r] = *shape;
  }
  a.largest = inner * row.growth(a.largest, b.largest);
  a.text = filled(row.text, a.text, b.text, static_cast<int>(dim), 0, "");
  return true;
}

bool apply_something(Draft& draft, Value& a, int depth) {
  const int roll = draft.random.between(0, 99);
  if (roll < 40) return apply_elementwise(draft, pick_elementwise(draft), a);
  if (roll < 68) return apply_structural(draft, a);
  if (roll < 86) return apply_binary(draft, a, depth - 1);
  return apply_elementwise(draft, draft.random.pick(kOfRanks), a);
}

const Value& pick_name(Draft& draft) {
  // Half of the picks take the newest, so that programs are deep rather than wide.
  return draft.random.chance(50) ? draft.names.back() : draft.random.pick(draft.names);
}

constexpr std::size_t kLongest = 160;  // characters

}  // namespace

Value draw_expression(Draft& draft, int depth) {
  Value value = pick_name(draft);
  for (int level = 0; level < depth; ++level) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      Value grown = value;
      if (!apply_something(draft, grown, depth) || !draft.fits(grown) ||
          grown.text.size() > kLongest)
        continue;
      value = std::move(grown);
      break;
    }
  }
  return value;
}

}  // namespace distgrad::fuzz
