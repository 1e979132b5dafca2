// Removes elements and dimensions: of one input, of one rank's, or of all of that size.
#include <fmt/format.h>

#include <set>

#include "fuzz/input_values.h"
#include "scenario/syntax.h"
#include "scenario/syntax_text.h"

namespace distgrad {
namespace {

// Returns an array without index k of a dimension, or unchanged if it has no such index.
Document without_index(const Document& array, std::size_t dim, std::size_t k) {
  if (!array.is_array()) return array;
  Document out = Document::array();
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (dim == 0 && i == k) continue;
    out.push_back(dim == 0 ? array[i] : without_index(array[i], dim - 1, k));
  }
  return out;
}

// Returns the first index of a dimension, which goes away.
Document without_dim(const Document& array, std::size_t dim) {
  if (!array.is_array() || array.empty()) return array;
  if (dim == 0) return array[0];
  Document out = Document::array();
  for (const Document& item : array) out.push_back(without_dim(item, dim - 1));
  return out;
}

// Returns the arrays of an input, wherever it keeps them.
std::vector<Place> arrays_of(const Document& document, const std::string& name) {
  const Place place = Place("/inputs") / name;
  const Document& input = document[place];
  if (!input.is_object()) return {place};
  if (input.contains("value")) return {place / "value"};
  std::vector<Place> places;
  if (input.contains("by_rank"))
    for (std::size_t r = 0; r < input["by_rank"].size(); ++r)
      places.push_back(place / "by_rank" / r);
  return places;
}

bool has_index(const Document& array, std::size_t dim, std::size_t k) {
  const std::vector<std::size_t> shape = shape_of(array);
  return dim < shape.size() && k < shape[dim];
}

void reduce_arrays(const Document& document, const std::vector<Place>& places,
                   const std::string& what, Reductions& out) {
  if (places.empty()) return;
  const std::vector<std::size_t> shape = shape_of(document[places.front()]);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    Document flat = document;
    for (const Place& place : places) flat[place] = without_dim(flat[place], dim);
    out.push_back({fmt::format("dim {} of {} dropped", dim, what), std::move(flat)});
    for (std::size_t k = 0; k < shape[dim]; ++k) {
      Document candidate = document;
      for (const Place& place : places)
        if (has_index(candidate[place], dim, k))
          candidate[place] = without_index(candidate[place], dim, k);
      out.push_back(
          {fmt::format("index {} of dim {} of {} dropped", k, dim, what), std::move(candidate)});
    }
  }
}

std::vector<int> smaller_sizes(int size) {
  std::set<int> sizes;
  for (const int smaller : {0, 1, 2, size / 2, size - 1})
    if (smaller < size && smaller >= 0) sizes.insert(smaller);
  return {sizes.begin(), sizes.end()};
}

void reduce_random_shape(const Document& document, const std::string& name, Reductions& out) {
  const Place place = Place("/inputs") / name / "random" / "shape";
  const Document& shape = document[place];
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    Document flat = document;
    flat[place].erase(dim);
    out.push_back({fmt::format("dim {} of {} dropped", dim, name), std::move(flat)});
    const int size = shape[dim].is_number() ? shape[dim].get<int>() : 4;
    for (const int smaller : smaller_sizes(size)) {
      Document candidate = document;
      candidate[place][dim] = smaller;
      out.push_back({fmt::format("dim {} of {}: {}", dim, name, smaller), std::move(candidate)});
    }
  }
}

void replace_integers(Syntax& node, int from, int to) {
  if (node.kind == Syntax::Kind::kInt && node.integer == from) node.integer = to;
  if (node.kind == Syntax::Kind::kFloat && node.number == from) node.number = to;
  for (SyntaxPtr& child : node.children)
    if (child) replace_integers(*child, from, to);
  for (auto& [name, value] : node.keywords) replace_integers(*value, from, to);
}

// Changes every array, random shape and, if asked, number in an expression of this size.
Document with_size_everywhere(const Document& document, int from, int to, bool expressions) {
  Document out = document;
  for (const auto& [name, input] : document["inputs"].items()) {
    for (const Place& place : arrays_of(document, name)) {
      const std::vector<std::size_t> shape = shape_of(out[place]);
      for (std::size_t dim = 0; dim < shape.size(); ++dim)
        for (int k = from; shape[dim] == static_cast<std::size_t>(from) && k > to; --k)
          out[place] = without_index(out[place], dim, static_cast<std::size_t>(k - 1));
    }
    if (!input.is_object() || !input.contains("random")) continue;
    for (Document& size : out["inputs"][name]["random"]["shape"])
      if (size == from) size = to;
  }
  if (!expressions) return out;
  for (const Place& place : expressions_of(out)) {
    try {
      const SyntaxPtr tree = parse_expression(out[place].get<std::string>());
      replace_integers(*tree, from, to);
      out[place] = text_of(*tree);
    } catch (const ExpressionError&) {
    }
  }
  return out;
}

std::set<int> sizes_in(const Document& document) {
  std::set<int> sizes;
  for (const auto& [name, input] : document["inputs"].items()) {
    for (const Place& place : arrays_of(document, name))
      for (const std::size_t size : shape_of(document[place])) sizes.insert(static_cast<int>(size));
    if (input.is_object() && input.contains("random"))
      for (const Document& size : input["random"]["shape"])
        if (size.is_number()) sizes.insert(size.get<int>());
  }
  return sizes;
}

}  // namespace

void reduce_shapes(const Document& document, Reductions& out) {
  constexpr int kLargestSize = 1 << 20;
  for (const int size : sizes_in(document))
    for (const int smaller : smaller_sizes(std::min(size, kLargestSize)))
      for (const bool expressions : {true, false})
        out.push_back({fmt::format("size {} -> {}", size, smaller),
                       with_size_everywhere(document, size, smaller, expressions)});
  for (const auto& [name, input] : document["inputs"].items()) {
    const std::vector<Place> places = arrays_of(document, name);
    reduce_arrays(document, places, name, out);
    if (places.size() > 1)
      for (std::size_t r = 0; r < places.size(); ++r)
        reduce_arrays(document, {places[r]}, fmt::format("{} on rank {}", name, r), out);
    if (input.is_object() && input.contains("random")) reduce_random_shape(document, name, out);
  }
}

}  // namespace distgrad
