#include <fmt/format.h>

#include <cfloat>
#include <cmath>

#include "base/error.h"
#include "dumps/dump_file.h"
#include "dumps/dump_metadata.h"
#include "dumps/mapped_file.h"
#include "dumps/strict_json.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLargestFile = std::size_t{256} << 20;

class Flattening {
 public:
  Flattening(const std::string& where, std::vector<double>& values, Shape& shape)
      : where_(where), values_(values), shape_(shape) {}

  // Adds numbers. The extents come from the first element of each dimension; all others must agree.
  void add(const Json& json, std::size_t dim = 0) {
    if (!json.is_array()) {
      if (dim < shape_.size() || leaf_dim_.value_or(dim) != dim) refuse_ragged();
      leaf_dim_ = dim;
      values_.push_back(number(json));
      return;
    }
    const auto extent = static_cast<std::int64_t>(json.size());
    if (dim == shape_.size()) {
      if (leaf_dim_ && *leaf_dim_ <= dim) refuse_ragged();
      shape_.push_back(extent);
    }
    if (shape_[dim] != extent) refuse_ragged();
    for (const Json& item : json) add(item, dim + 1);
  }

 private:
  [[noreturn]] void refuse_ragged() const {
    throw UserError(where_ + ": its rows are not equally long");
  }

  double number(const Json& json) const {
    if (json.is_number()) return json.get<double>();
    const std::string text = json.is_string() ? json.get<std::string>() : "";
    if (text == "nan") return std::nan("");
    if (text == "inf") return HUGE_VAL;
    if (text == "-inf") return -HUGE_VAL;
    throw UserError(fmt::format("{}: {} is no number", where_,
                                for_terminal(json.dump(-1, ' ', true).substr(0, 40))));
  }

  const std::string& where_;
  std::vector<double>& values_;
  Shape& shape_;
  std::optional<std::size_t> leaf_dim_;
};

bool is_float32(double value) {
  if (!std::isfinite(value)) return true;
  return std::abs(value) <= FLT_MAX && static_cast<double>(static_cast<float>(value)) == value;
}

DumpTensor tensor_of(const Json& json, const std::string& where) {
  auto values = std::make_shared<std::vector<double>>();
  DumpTensor tensor;
  Flattening(where, *values, tensor.shape).add(json);
  bool narrow = true;
  for (const double v : *values) narrow = narrow && is_float32(v);
  if (narrow) {
    auto floats = std::make_shared<std::vector<float>>(values->begin(), values->end());
    tensor.dtype = DType::kFloat32;
    tensor.data = reinterpret_cast<const std::byte*>(floats->data());
    tensor.keeper = floats;
    return tensor;
  }
  tensor.data = reinterpret_cast<const std::byte*>(values->data());
  tensor.keeper = values;
  return tensor;
}

}  // namespace

RankDump read_json_dump(const std::string& path) {
  const std::string shown = for_terminal(path);
  const MappedFile file = map_file(path);
  if (file.size > kLargestFile)
    throw UserError(
        fmt::format("{}: larger than {} MiB; write .safetensors (distgrad.save_gradients does)",
                    shown, kLargestFile >> 20));
  const Json json = parse_strict_json(file.text(), shown);
  if (!json.is_object()) throw UserError(shown + ": not an object of gradients");
  if (json.contains("tool") && json["tool"].is_object() && json.contains("cases"))
    throw UserError(shown +
                    ": a report of cases, which has no gradients; docs/ci.md compares two"
                    " reports with jq");
  RankDump dump;
  dump.file = path;
  const bool wrapped_form = json.contains("gradients") && json["gradients"].is_object();
  const Json& gradients = wrapped_form ? json["gradients"] : json;
  int position = 0;  // scripts write them in the model's order
  for (const auto& [name, value] : gradients.items()) {
    DumpGradient& gradient = dump.gradients[name];
    gradient.position = position++;
    if (!value.is_null()) gradient.tensor = tensor_of(value, shown + ": " + for_terminal(name));
  }
  if (wrapped_form) apply_metadata(json, dump);
  return dump;
}

}  // namespace distgrad::dumps
