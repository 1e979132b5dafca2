#include "fuzz/weight.h"

#include <fmt/format.h>

#include <cmath>

#include "fuzz/document.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

enum Part {
  kCollectivesPart,
  kRanks,
  kSteps,
  kOptions,
  kExpressions,
  kElements,
  kOddness,
  kCharacters
};

// Gives the oddness of the least odd random number: anything written out is easier to read.
constexpr std::int64_t kRandomOddness = 1000;

void add_expression(const Syntax& node, Weight& weight) {
  switch (node.kind) {
    case Syntax::Kind::kInt:
      weight[kExpressions] += 1;
      weight[kOddness] += oddness_of(static_cast<double>(node.integer));
      break;
    case Syntax::Kind::kFloat:
      weight[kExpressions] += 1;
      weight[kOddness] += oddness_of(node.number);
      break;
    default:
      weight[kExpressions] += 2;
  }
  for (const SyntaxPtr& child : node.children)
    if (child) add_expression(*child, weight);
  for (const auto& [name, value] : node.keywords) {
    weight[kExpressions] += 1;
    add_expression(*value, weight);
  }
}

void add_numbers(const Document& array, std::int64_t times, Weight& weight) {
  Document copy = array;
  for_each_number(copy, [&](const Document& number) {
    weight[kElements] += times;
    weight[kOddness] += number.is_number() ? oddness_of(number.get<double>()) : oddness_of(NAN);
  });
}

std::int64_t keys_in(const Document& value) {
  std::int64_t keys = value.is_object() ? static_cast<std::int64_t>(value.size()) : 0;
  if (value.is_structured())
    for (const Document& item : value) keys += keys_in(item);
  return keys;
}

void add_random(const Document& random, std::int64_t ranks, Weight& weight) {
  const std::string kind = random.value("kind", "integers");
  std::int64_t elements = ranks;
  for (const Document& size : random["shape"])
    if (size.is_number()) elements *= size.get<std::int64_t>();
  weight[kElements] += elements;
  weight[kOddness] += elements * (kRandomOddness + (kind == "integers" ? 0 : 1000));
  weight[kExpressions] += static_cast<std::int64_t>(random["shape"].size());
}

void add_inputs(const Document& document, Weight& weight) {
  const int ranks = world_size_of(document);
  for (const Document& input : document["inputs"]) {
    weight[kSteps] += 1;
    if (!input.is_object()) {
      add_numbers(input, 1, weight);
      continue;
    }
    weight[kOptions] += keys_in(input);
    if (input.contains("value")) add_numbers(input["value"], 1, weight);
    if (input.contains("by_rank"))
      for (const Document& value : input["by_rank"]) add_numbers(value, 1, weight);
    const bool local = !input.contains("layout") || input["layout"] == "local";
    if (input.contains("random"))
      add_random(input["random"], local ? std::max(ranks, 1) : 1, weight);
  }
}

std::int64_t numbers_in(const Document& value) {
  if (value.is_number()) return oddness_of(value.get<double>()) + 1;
  std::int64_t total = 0;
  if (value.is_structured())
    for (const Document& item : value) total += numbers_in(item);
  return total;
}

void add_step(const Document& step, Weight& weight) {
  weight[kSteps] += 1;
  const Document& value = value_of_step(step);
  if (!value.is_object()) return;
  weight[kCollectivesPart] += 1;
  weight[kOptions] += keys_in(value);
  weight[kOddness] += numbers_in(value);
}

std::int64_t objective_weight(const Document& objective) {
  if (objective == "sum") return 0;
  if (objective == "mean") return 1;
  if (objective == "replicated") return 2;
  return 3 + keys_in(objective);
}

std::int64_t listed(const Document& document, const char* key) {
  const auto found = document.find(key);
  return found != document.end() && found->is_array() ? static_cast<std::int64_t>(found->size())
                                                      : 1;
}

void add_world(const Document& document, Weight& weight) {
  if (const auto sizes = document.find("world_size"); sizes != document.end() && sizes->is_array())
    for (const Document& size : *sizes) weight[kRanks] += size.get<int>();
  else
    weight[kRanks] += world_size_of(document);
  weight[kRanks] +=
      listed(document, "dtype") + listed(document, "backend") + listed(document, "world_size");
}

}  // namespace

std::int64_t oddness_of(double number) {
  if (!std::isfinite(number)) return 300;
  if (number != std::floor(number))
    return 200 + static_cast<std::int64_t>(fmt::format("{}", number).size());
  const double size = std::abs(number);
  if (size > 100) return 110 + static_cast<std::int64_t>(fmt::format("{}", size).size());
  return static_cast<std::int64_t>(size) + (std::signbit(number) ? 3 : 0);
}

Weight weight_of(const Document& document) {
  Weight weight{};
  add_world(document, weight);
  add_inputs(document, weight);
  for (const Document& step : document["steps"]) add_step(step, weight);
  if (document.contains("single_device"))
    for (const Document& step : document["single_device"]["steps"]) add_step(step, weight);
  weight[kOptions] += static_cast<std::int64_t>(document.size());
  for (const char* key :
       {"mesh", "groups", "sync", "truth", "single_device", "subjects", "tolerance"})
    if (document.contains(key)) weight[kOptions] += keys_in(document[key]);
  for (const char* key : {"groups", "truth"})
    if (document.contains(key)) weight[kOddness] += numbers_in(document[key]);
  if (document.contains("objective")) weight[kOptions] += objective_weight(document["objective"]);
  for (const Place& place : expressions_of(document)) {
    try {
      add_expression(*parse_expression(document[place].get<std::string>()), weight);
    } catch (const ExpressionError&) {
      weight[kExpressions] += 1000;
    }
  }
  weight[kCharacters] = static_cast<std::int64_t>(
      document.dump(-1, ' ', false, Document::error_handler_t::replace).size());
  return weight;
}

}  // namespace distgrad
