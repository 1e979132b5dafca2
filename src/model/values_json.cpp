#include "model/values_json.h"

#include <cmath>

#include "base/number_text.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

Json nested(const Array& array, std::size_t dim, std::int64_t& next) {
  if (dim == array.shape().size()) return number_json(array[next++]);
  Json list = Json::array();
  for (std::int64_t i = 0; i < array.shape()[dim]; ++i)
    list.push_back(nested(array, dim + 1, next));
  return list;
}

}  // namespace

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(number_text(value));
}

Json numbers_json(std::span<const double> values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(number_json(value));
  return list;
}

Json nested_json(const Array& array) {
  std::int64_t next = 0;
  return nested(array, 0, next);
}

}  // namespace distgrad
