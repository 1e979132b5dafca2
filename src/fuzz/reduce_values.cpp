// Simplifies numbers, and writes them out instead of drawing them.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "fuzz/input_values.h"
#include "model/random_values.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

// Limit how many random numbers are written out, and how many are simplified one by one.
constexpr std::size_t kWrittenOut = 24;
constexpr std::size_t kOneByOne = 64;

Document nested(const std::vector<std::int64_t>& shape, std::size_t dim, const RandomValues& values,
                std::uint64_t& next) {
  if (dim == shape.size()) return values[next++];
  Document list = Document::array();
  for (std::int64_t i = 0; i < shape[dim]; ++i)
    list.push_back(nested(shape, dim + 1, values, next));
  return list;
}

bool is_local(const Document& input) {
  return !input.contains("layout") || input["layout"] == "local";
}

RandomSpec spec_of(const Document& random) {
  RandomSpec spec;
  const std::string kind = random.value("kind", "integers");
  if (kind == "normal") spec.kind = RandomSpec::Kind::kNormal;
  if (kind == "uniform") spec.kind = RandomSpec::Kind::kUniform;
  spec.low = random.value("low", spec.low);
  spec.high = random.value("high", spec.high);
  spec.seed = random.value("seed", spec.seed);
  return spec;
}

void write_out_random(const Document& document, const std::string& name, Reductions& out) {
  const Document& input = document["inputs"][name];
  const Document& random = input["random"];
  std::vector<std::int64_t> shape;
  std::size_t elements = 1;
  for (const Document& size : random["shape"]) {
    if (!size.is_number()) return;
    shape.push_back(size.get<std::int64_t>());
    elements *= static_cast<std::size_t>(shape.back());
  }
  const int ranks = is_local(input) ? world_size_of(document) : 1;
  if (ranks == 0 || elements * static_cast<std::size_t>(ranks) > kWrittenOut) return;
  const auto values = [&](int rank) {
    std::uint64_t next = 0;
    return nested(shape, 0, RandomValues(spec_of(random), name, rank), next);
  };
  Document candidate = document;
  Document& written = candidate["inputs"][name];
  Document by_rank = Document::array();
  if (is_local(input))
    for (int r = 0; r < ranks; ++r) by_rank.push_back(values(r));
  Document first;  // the value comes first, as people write it
  first[is_local(input) ? "by_rank" : "value"] = is_local(input) ? by_rank : values(-1);
  for (const auto& [key, value] : input.items())
    if (key != "random") first[key] = value;
  written = first;
  out.push_back({"values of " + name + " written out", std::move(candidate)});
}

void simplify_random(const Document& document, const std::string& name, Reductions& out) {
  for (const char* key : {"kind", "low", "high", "seed"}) {
    Document candidate = document;
    Document& random = candidate["inputs"][name]["random"];
    if (!drop(random, key)) continue;
    out.push_back({fmt::format("{} of {} dropped", key, name), candidate});
    drop(random, "low");
    drop(random, "high");
    out.push_back({fmt::format("{} of {} dropped", key, name), std::move(candidate)});
  }
  write_out_random(document, name, out);
}

Document* values_of(Document& document, const std::string& name) {
  Document& input = document["inputs"][name];
  if (!input.is_object()) return &input;
  if (input.contains("value")) return &input["value"];
  return input.contains("by_rank") ? &input["by_rank"] : nullptr;
}

// Changes every number of the input by a function of the number and its place.
template <class F>
void with_numbers(const Document& document, const std::string& name, const std::string& what,
                  F function, Reductions& out) {
  Document candidate = document;
  std::size_t i = 0;
  for_each_number(*values_of(candidate, name),
                  [&](Document& number) { number = function(number, i++); });
  out.push_back({fmt::format("{}: {}", name, what), std::move(candidate)});
}

// Returns the number, if the expression is nothing else.
std::optional<double> number_in(const std::string& expression) {
  try {
    const SyntaxPtr tree = parse_expression(expression);
    if (tree->kind == Syntax::Kind::kInt) return static_cast<double>(tree->integer);
    if (tree->kind == Syntax::Kind::kFloat) return tree->number;
  } catch (const ExpressionError&) {
  }
  return std::nullopt;
}

double rounded(const Document& number) {
  return number.is_number() ? std::round(number.get<double>()) : 0.0;
}

void simplify_each(const Document& document, const std::string& name, std::size_t numbers,
                   Reductions& out) {
  for (std::size_t i = 0; i < numbers; ++i) {
    for (const double simple : {0.0, 1.0, 2.0, 3.0, -1.0})
      with_numbers(
          document, name, fmt::format("number {} is {}", i, simple),
          [&](const Document& number, std::size_t at) {
            return at == i ? Document(simple) : number;
          },
          out);
    with_numbers(
        document, name, fmt::format("number {} rounded", i),
        [&](const Document& number, std::size_t at) {
          return at == i ? Document(rounded(number)) : number;
        },
        out);
  }
}

void simplify_numbers(const Document& document, const std::string& name, Reductions& out) {
  Document copy = document;
  Document* values = values_of(copy, name);
  if (!values) return;
  std::size_t numbers = 0;
  for_each_number(*values, [&](Document&) { ++numbers; });
  for (const double simple : {0.0, 1.0})
    with_numbers(
        document, name, fmt::format("all {}", simple),
        [&](const Document&, std::size_t) { return Document(simple); }, out);
  with_numbers(
      document, name, "numbered",
      [](const Document&, std::size_t at) { return Document(static_cast<double>(at + 1)); }, out);
  with_numbers(
      document, name, "rounded",
      [](const Document& number, std::size_t) { return Document(rounded(number)); }, out);
  if (numbers <= kOneByOne) simplify_each(document, name, numbers, out);
}

// Uses one value on every rank, and a bare one instead of an object.
void simplify_form(const Document& document, const std::string& name, Reductions& out) {
  const Document& input = document["inputs"][name];
  const bool by_rank = input.contains("by_rank");
  const char* key = by_rank ? "by_rank" : "value";
  if (!input.contains(key) || (by_rank && input[key].empty())) return;
  const Document value = by_rank ? input[key][0] : input[key];
  Document bare = document;
  bare["inputs"][name] = value;
  out.push_back({name + ": a bare value", std::move(bare)});
  if (!by_rank) return;
  Document one;
  for (const auto& [k, v] : input.items())
    one[k == "by_rank" ? "value" : k] = k == "by_rank" ? value : v;
  Document candidate = document;
  candidate["inputs"][name] = one;
  out.push_back({name + ": one value on every rank", std::move(candidate)});
}

// Writes an expression that is a number as one.
void write_out_number(const Document& document, const std::string& name, Reductions& out) {
  const Document& input = document["inputs"][name];
  if (!input.contains("expr")) return;
  const std::optional<double> number = number_in(input["expr"].get<std::string>());
  if (!number) return;
  Document written;  // the value comes first, as people write it
  written["value"] = *number;
  for (const auto& [key, value] : input.items())
    if (key != "expr") written[key] = value;
  Document candidate = document;
  candidate["inputs"][name] = written.size() == 1 ? Document(*number) : written;
  out.push_back({name + ": a number", std::move(candidate)});
}

}  // namespace

void reduce_values(const Document& document, Reductions& out) {
  for (const auto& [name, input] : document["inputs"].items()) {
    if (input.is_object() && input.contains("random")) simplify_random(document, name, out);
    if (input.is_object()) write_out_number(document, name, out);
    if (input.is_object()) simplify_form(document, name, out);
    simplify_numbers(document, name, out);
  }
}

}  // namespace distgrad
