#include "protocol/payload.h"

#include <cmath>

#include "base/json_depth.h"

namespace distgrad {
namespace {

constexpr int kDeepest = 64;
constexpr std::size_t kLarge = 1 << 10;  // it is worth checking whether these are there already

}  // namespace

std::size_t PayloadWriter::add(std::span<const double> values) {
  const std::size_t at = size_;
  if (values.size() >= kLarge) {
    const auto [known, is_new] = large_.emplace(std::pair(values.data(), values.size()), at);
    if (!is_new) return known->second;
  }
  if (!values.empty()) pieces_.push_back(values);
  size_ += values.size();
  return at;
}

Json PayloadWriter::array(const Array& array) {
  Json json;
  json["shape"] = array.shape();
  if (known_ && known_->holds(array))
    json["expected_at"] = known_->place_of(array);
  else
    json["at"] = add(array.values());
  return json;
}

Json PayloadWriter::arrays(const std::vector<Array>& all) {
  Json list = Json::array();
  for (const Array& a : all) list.push_back(array(a));
  return list;
}

Json PayloadWriter::numbers(std::span<const double> values) {
  Json json;
  json["shape"] = Shape{static_cast<std::int64_t>(values.size())};
  json["at"] = add(values);
  return json;
}

SharedFrame PayloadWriter::finish(const Json& header,
                                  std::vector<std::shared_ptr<const UniqueFd>> fds) {
  return make_frame(header_text(header), pieces_, std::move(fds));
}

Array PayloadReader::array(const Json& json) const {
  Shape shape;
  // The size is checked as it grows, so that no product overflows. An empty tensor may have any
  // other sizes.
  constexpr std::int64_t kLimit = std::int64_t{1} << 48;
  std::int64_t product_of_others = 1, size = 1;
  for (const Json& entry : read_list(field(json, "shape"))) {
    const std::int64_t length = read_integer(entry, 0, kLimit);
    if (length > 0 && product_of_others > kLimit / length)
      throw BadMessage("a tensor is too large");
    if (length > 0) product_of_others *= length;
    size *= length;
    shape.push_back(length);
  }
  const Json* expected_at = optional_field(json, "expected_at");
  if (expected_at && !known_) throw BadMessage("a tensor is said to be as expected, and none was");
  const std::span<const double> data = expected_at ? known_->values : frame_.payload;
  const std::int64_t available = static_cast<std::int64_t>(data.size());
  const std::int64_t at =
      read_integer(expected_at ? *expected_at : field(json, "at"), 0, available);
  if (size > available - at) throw BadMessage("a tensor lies beyond the end of the frame's data");
  return Array(std::move(shape), data.data() + at, expected_at ? known_->keeper : frame_.keeper);
}

std::vector<Array> PayloadReader::arrays(const Json& json) const {
  std::vector<Array> all;
  for (const Json& a : read_list(json)) all.push_back(array(a));
  return all;
}

std::vector<double> PayloadReader::numbers(const Json& json) const {
  const Array values = array(json);
  if (values.shape().size() != 1)
    throw BadMessage("a list of numbers is not a tensor of one dimension");
  return {values.values().begin(), values.values().end()};
}

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double read_number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string& text = read_text(json);
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw BadMessage("not a number: \"" + text + '"');
}

std::int64_t read_integer(const Json& json, std::int64_t low, std::int64_t high) {
  if (!json.is_number_integer()) throw BadMessage("not an integer: " + shown(json));
  const bool too_large = json.is_number_unsigned() &&
                         json.get<std::uint64_t>() >
                             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t value = too_large ? 0 : json.get<std::int64_t>();
  if (too_large || value < low || value > high)
    throw BadMessage("an integer is out of range: " + shown(json));
  return value;
}

std::uint64_t read_id(const Json& json) {
  if (!json.is_number_unsigned()) throw BadMessage("not a non-negative integer: " + shown(json));
  return json.get<std::uint64_t>();
}

const std::string& read_text(const Json& json) {
  if (const auto* text = json.get_ptr<const std::string*>()) return *text;
  throw BadMessage("not a text: " + shown(json));
}

bool read_bool(const Json& json) {
  if (!json.is_boolean()) throw BadMessage("not true or false: " + shown(json));
  return json.get<bool>();
}

const Json& read_list(const Json& json) {
  if (!json.is_array()) throw BadMessage("not a list: " + shown(json));
  return json;
}

const Json& field(const Json& object, const char* name) {
  const Json* found = optional_field(object, name);
  if (!found) throw BadMessage(std::string("\"") + name + "\" is missing");
  return *found;
}

const Json* optional_field(const Json& object, const char* name) {
  if (!object.is_object()) throw BadMessage("not an object: " + shown(object));
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string shown(const Json& json) {
  constexpr std::size_t kLongest = 80;
  if (json.is_structured()) return json.is_array() ? "a list" : "an object";
  if (const auto* text = json.get_ptr<const std::string*>(); text && text->size() > kLongest)
    return "a long text";
  return header_text(json);
}

std::string header_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_header(const std::string& text) {
  if (is_nested_deeper(text, kDeepest)) throw BadMessage("a frame's header is nested too deeply");
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw BadMessage("a frame's header is not JSON");
  return json;
}

}  // namespace distgrad
