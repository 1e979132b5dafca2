// Reads inputs and sync.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 27;  // 1 GiB of float64
constexpr std::size_t kMostInputs = 10'000;

using Sync = Input::Sync;
using LayoutKind = Layout::Kind;

std::optional<std::int64_t> read_extent(const JsonValue& item, Problems& problems) {
  return read_integer(item, 0, kMostElements, problems);
}

void read_shape(const JsonValue& value, RandomSpec& random, Problems& problems) {
  if (!read_list(value, "as in [2, 3] (a number is [])", problems)) return;
  if (value.size() > kMaxDim + 1)
    problems.at(value, fmt::format("has more than {} dimensions", kMaxDim + 1));
  std::int64_t elements = 1;
  for (const JsonValue& item : value.children()) {
    if (item.is_text()) {
      if (auto expression = read_expression(item, problems))
        random.shape.emplace_back(std::move(*expression));
    } else if (item.is_number()) {
      const auto extent = read_extent(item, problems);
      if (!extent) return;
      random.shape.emplace_back(*extent);
      if (elements <= kMostElements) elements *= std::max<std::int64_t>(*extent, 1);
    } else {
      problems.at(item, "must be an integer or an expression, not " + description(item));
    }
  }
  if (elements > kMostElements)
    problems.at(value, fmt::format("has more than {} elements", kMostElements));
}

// Reads a bound, "low" or "high", that fits the kind.
std::optional<double> read_bound(const JsonValue& value, RandomSpec::Kind kind,
                                 Problems& problems) {
  if (kind != RandomSpec::Kind::kIntegers) return read_number(value, problems);
  // Beyond it float64 has no odd integers.
  constexpr std::int64_t kMostExact = std::int64_t{1} << 53;
  const auto integer = read_integer(value, -kMostExact, kMostExact, problems);
  return integer ? std::optional<double>(static_cast<double>(*integer)) : std::nullopt;
}

void read_bounds(const JsonValue& value, RandomSpec& random, Problems& problems) {
  const auto low = value.member("low"), high = value.member("high");
  for (const auto& [bound, into] : {std::pair(low, &random.low), std::pair(high, &random.high)}) {
    if (!bound) continue;
    if (random.kind == RandomSpec::Kind::kNormal) {
      problems.at_key(*bound,
                      fmt::format("the kind \"normal\" takes no {}; scale the values in a step",
                                  in_quotes(bound->key())));
      continue;
    }
    if (const auto number = read_bound(*bound, random.kind, problems)) *into = *number;
  }
  if (random.kind != RandomSpec::Kind::kNormal && random.low > random.high)
    problems.at(low ? *low : *high,
                fmt::format("low, {}, is above high, {}", random.low, random.high));
  if (!std::isfinite(random.high - random.low))
    problems.at(value, "the distance from low to high is beyond the range of float64");
}

std::optional<RandomSpec> read_random(const JsonValue& value, Problems& problems) {
  if (!read_object(value, "{ \"shape\": [2, 3], \"kind\": \"integers\" }", problems))
    return std::nullopt;
  check_keys(value, {"shape", "kind", "low", "high", "seed"}, problems);
  RandomSpec random;
  if (const auto kind = value.member("kind")) {
    constexpr std::array kKinds = {"integers", "normal", "uniform"};
    const std::vector<std::string> names = strings_of(kKinds);
    if (const auto name = read_name_among(*kind, "kind of random values", names, problems))
      random.kind = static_cast<RandomSpec::Kind>(std::find(names.begin(), names.end(), *name) -
                                                  names.begin());
  }
  if (const auto shape = value.member("shape")) {
    read_shape(*shape, random, problems);
  } else {
    problems.missing(value, "shape", "is missing; write \"shape\": [2, 3], or [] for a number");
  }
  read_bounds(value, random, problems);
  if (const auto seed = value.member("seed"))
    random.seed = static_cast<std::uint64_t>(
        read_integer(*seed, 0, std::numeric_limits<std::int64_t>::max(), problems).value_or(0));
  return random;
}

// Recognises { "shard": 0 }, unless "shard" is a mesh axis that has a word there.
bool is_shard(const JsonValue& value, const Scenario& scenario) {
  const auto dim = value.member("shard");
  if (!dim || value.size() != 1) return false;
  const std::vector<std::string> axes = axis_names(scenario);
  return dim->is_number() || std::find(axes.begin(), axes.end(), "shard") == axes.end();
}

std::optional<Layout> read_layout_word(const JsonValue& value, bool along_an_axis,
                                       const Parts& parts) {
  Problems& problems = parts.problems;
  if (is_shard(value, parts.scenario)) {
    const auto dim = read_integer(*value.member("shard"), -kMaxDim - 1, kMaxDim, problems);
    if (!dim) return std::nullopt;
    return Layout{LayoutKind::kShard, static_cast<int>(*dim)};
  }
  if (value.is_text()) {
    if (value.text() == "replicate") return Layout{LayoutKind::kReplicate, 0};
    if (value.text() == "invariant") return Layout{LayoutKind::kInvariant, 0};
    if (value.text() == "local" && !along_an_axis) return Layout{LayoutKind::kLocal, 0};
    if (value.text() == "local") {
      problems.at(
          value,
          "\"local\" is for the whole world, not for one mesh axis; write \"layout\": \"local\"");
      return std::nullopt;
    }
    if (value.text() == "shard" || value.text() == "sharded") {
      problems.at(value, "a sharded layout names its dimension; write { \"shard\": 0 }");
      return std::nullopt;
    }
  }
  const std::vector<std::string> words =
      along_an_axis ? std::vector<std::string>{"replicate", "invariant"}
                    : std::vector<std::string>{"local", "replicate", "invariant"};
  std::string all =
      (along_an_axis ? "\"replicate\", \"invariant\"" : "\"local\", \"replicate\", \"invariant\"");
  all += " or { \"shard\": 0 }";
  std::string hint = value.is_text() ? name_hint(value.text(), words) : std::string();
  if (hint.empty())
    hint = "; it is " + all + (along_an_axis ? "" : ", or one of these for every mesh axis");
  problems.at(value, "unknown layout, " + description(value) + hint);
  return std::nullopt;
}

std::vector<AxisLayout> read_layout(const JsonValue& value, const Parts& parts) {
  if (!value.is_object() || is_shard(value, parts.scenario)) {
    const auto layout = read_layout_word(value, false, parts);
    return {{"", layout.value_or(Layout{})}};
  }
  check_axes(value, parts.scenario, parts.problems);
  std::vector<AxisLayout> layouts;
  for (const MeshAxis& axis : parts.scenario.mesh) {
    const auto word = value.member(axis.name);
    if (!word)
      parts.problems.missing(value, axis.name,
                             "is missing; a layout by axis names every mesh axis");
    const auto layout = word ? read_layout_word(*word, true, parts) : std::nullopt;
    layouts.push_back({axis.name, layout.value_or(Layout{LayoutKind::kReplicate, 0})});
  }
  return layouts;
}

std::optional<std::size_t> dimensions_of(const Input& input) {
  if (const auto* array = std::get_if<Array>(&input.value)) return array->shape().size();
  if (const auto* random = std::get_if<RandomSpec>(&input.value)) return random->shape.size();
  return std::nullopt;
}

void check_shard_dimensions(const Input& input, const JsonValue& layout, Problems& problems) {
  const auto dimensions = dimensions_of(input);
  if (!dimensions) return;
  const int n = static_cast<int>(*dimensions);
  for (const AxisLayout& axis : input.layout) {
    const int dim = axis.layout.dim;
    if (axis.layout.kind != LayoutKind::kShard || (dim < n && dim >= -n)) continue;
    problems.at(axis.axis.empty() ? layout : *layout.member(axis.axis),
                n == 0 ? "a number cannot be sharded"
                       : fmt::format("the input has {} dimensions, none of them is {}", n, dim));
  }
}

void read_by_rank(const JsonValue& value, Input& input, Problems& problems) {
  if (!read_list(value, "one value for each rank", problems)) return;
  std::vector<Array> values;
  for (const JsonValue& item : value.children()) {
    auto array = read_array(item, problems);
    if (!array) return;
    values.push_back(std::move(*array));
  }
  input.value = std::move(values);
}

std::vector<JsonValue> given_values(const JsonValue& object) {
  std::vector<JsonValue> given;
  for (const char* key : {"value", "by_rank", "expr", "random"})
    if (const auto value = object.member(key)) given.push_back(*value);
  return given;
}

void read_value(const JsonValue& object, Input& input, Problems& problems) {
  const std::vector<JsonValue> given = given_values(object);
  if (given.empty()) {
    problems.at(object,
                "has no value; give one of \"value\", \"by_rank\", \"expr\" and \"random\"");
    return;
  }
  if (given.size() > 1) {
    problems.at_key(
        given[1],
        fmt::format(
            "an input has one of \"value\", \"by_rank\", \"expr\" and \"random\"; here is {} "
            "beside {}",
            in_quotes(given[1].key()), in_quotes(given[0].key())));
    return;
  }
  const JsonValue value = given.front();
  if (value.key() == "value") {
    if (auto array = read_array(value, problems)) input.value = std::move(*array);
  } else if (value.key() == "by_rank") {
    read_by_rank(value, input, problems);
  } else if (value.key() == "expr") {
    if (auto expression = read_expression(value, problems)) input.value = std::move(*expression);
  } else if (auto random = read_random(value, problems)) {
    input.value = std::move(*random);
  }
}

Input read_input(const JsonValue& member, const Parts& parts) {
  Problems& problems = parts.problems;
  Input input;
  input.name = member.key();
  input.pointer = member.pointer();
  input.layout = {{"", Layout{}}};
  if (!member.is_object()) {
    if (member.is_text() && !non_finite_word(member)) {
      problems.at(
          member,
          fmt::format(
              "a bare input is a number or nested lists of numbers; write {{ \"expr\": {} }}",
              in_quotes(member.text())));
    } else if (auto array = read_array(member, problems)) {
      input.value = std::move(*array);
    }
    return input;
  }
  const bool all_known = check_keys(
      member, {"value", "by_rank", "expr", "random", "requires_grad", "layout"}, problems);
  if (all_known || !given_values(member).empty()) read_value(member, input, problems);
  if (const auto requires_grad = member.member("requires_grad"))
    input.requires_grad = read_bool(*requires_grad, problems).value_or(true);
  if (const auto layout = member.member("layout")) {
    input.layout = read_layout(*layout, parts);
    check_shard_dimensions(input, *layout, problems);
  }
  if (const auto by_rank = member.member("by_rank"); by_rank && !input.is_local())
    problems.at_key(*by_rank,
                    "values by rank are for the layout \"local\"; other layouts have one \"value\" "
                    "for all ranks");
  return input;
}

std::optional<Sync> read_sync_word(const JsonValue& value, Problems& problems) {
  const std::vector<std::string> words = {"sum", "mean"};
  const auto word = read_name_among(value, "sync", words, problems);
  if (!word) return std::nullopt;
  return *word == "sum" ? Sync::kSum : Sync::kMean;
}

bool replicates(const AxisLayout& axis) { return axis.layout.kind == LayoutKind::kReplicate; }

void read_sync_of_world(const JsonValue& member, Input& input, Problems& problems) {
  const auto sync = read_sync_word(member, problems);
  if (!sync) return;
  for (const AxisLayout& axis : input.layout)
    if (replicates(axis)) input.sync.emplace_back(axis.axis, *sync);
  if (input.sync.empty())
    problems.at_key(
        member,
        fmt::format("a sync is for inputs whose layout is \"replicate\", and that of {} is not",
                    in_quotes(input.name)));
}

void read_sync_by_axis(const JsonValue& member, Input& input, const Parts& parts) {
  if (!check_axes(member, parts.scenario, parts.problems)) return;
  if (member.size() == 0) parts.problems.at(member, "names no mesh axis");
  for (const MeshAxis& axis : parts.scenario.mesh) {  // in mesh order
    const auto value = member.member(axis.name);
    const auto sync = value ? read_sync_word(*value, parts.problems) : std::nullopt;
    if (!sync) continue;
    const bool replicated =
        std::any_of(input.layout.begin(), input.layout.end(), [&](const AxisLayout& a) {
          return replicates(a) && (a.axis.empty() || a.axis == axis.name);
        });
    if (!replicated)
      parts.problems.at_key(
          *value,
          fmt::format("a sync is along axes where the layout is \"replicate\", and that of {} "
                      "along {} is not",
                      in_quotes(input.name), in_quotes(axis.name)));
    input.sync.emplace_back(axis.name, *sync);
  }
}

}  // namespace

const Input* input_named(const Scenario& scenario, std::string_view name) {
  const auto found = std::find_if(scenario.inputs.begin(), scenario.inputs.end(),
                                  [&](const Input& input) { return input.name == name; });
  return found == scenario.inputs.end() ? nullptr : &*found;
}

std::vector<std::string> input_names(const Scenario& scenario) {
  std::vector<std::string> names;
  for (const Input& input : scenario.inputs) names.push_back(input.name);
  return names;
}

void read_inputs(Parts& parts) {
  const auto value = parts.key("inputs");
  if (!value) {
    parts.problems.missing(parts.root, "inputs", "is missing; write \"inputs\": { \"x\": 1.0 }");
    return;
  }
  if (!read_object(*value, "{ \"x\": 1.0 }", parts.problems)) return;
  if (value->size() > kMostInputs) {
    parts.problems.at(*value, fmt::format("has more than {} inputs", kMostInputs));
    return;
  }
  for (const JsonValue& member : value->children()) {
    if (parts.problems.full()) return;
    parts.scenario.inputs.push_back(read_input(member, parts));
  }
  const auto& inputs = parts.scenario.inputs;
  if (std::none_of(inputs.begin(), inputs.end(),
                   [](const Input& input) { return input.requires_grad; }))
    parts.problems.at(*value, "no input requires a gradient: there is nothing to compare");
}

void read_sync(Parts& parts) {
  const auto value = parts.key("sync");
  if (!value || !read_object(*value, "{ \"w\": \"mean\" }", parts.problems)) return;
  const std::vector<std::string> names = input_names(parts.scenario);
  for (const JsonValue& member : value->children()) {
    if (parts.problems.full()) return;
    const auto input = std::find_if(parts.scenario.inputs.begin(), parts.scenario.inputs.end(),
                                    [&](const Input& i) { return i.name == member.key(); });
    if (input == parts.scenario.inputs.end()) {
      parts.problems.at_key(member, "unknown input " + in_quotes(member.key()) +
                                        name_hint_or_choices(member.key(), names, "it is"));
      continue;
    }
    if (!input->requires_grad) {
      parts.problems.at_key(
          member,
          in_quotes(member.key()) + " has \"requires_grad\": false, so no gradient to synchronise");
      continue;
    }
    if (member.is_object()) {
      read_sync_by_axis(member, *input, parts);
    } else {
      read_sync_of_world(member, *input, parts.problems);
    }
  }
}

}  // namespace distgrad
