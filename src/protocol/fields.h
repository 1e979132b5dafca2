// Lists the members of what messages carry once for both directions. `fields(archive, value)` names
// each member to a FieldWriter, which makes JSON of it, or to a FieldReader, which fills and checks
// it. The lists use structured bindings, so a member that is added to a struct and forgotten in its
// list does not compile. Included by the codecs only.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/payload.h"

namespace distgrad {

// Accepts a T, which is const for a writer.
template <class Value, class T>
concept Like = std::same_as<std::remove_const_t<Value>, T>;

inline constexpr std::int64_t kMostInteger = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();

// Returns true if an optional member is to be left out, since it has its default value.
template <class T>
bool is_left_out(const T& value) {
  if constexpr (requires { value.has_value(); })
    return !value.has_value();
  else if constexpr (requires { value.empty(); })
    return value.empty();
  else
    return value == T{};
}

// Enumerators go by name: message_name(E), and message_named(text, E{}), which returns nothing for
// an unknown name. Both are found by the type of their argument, as fields() is.
class FieldWriter {
 public:
  static constexpr bool kReads = false;

  explicit FieldWriter(PayloadWriter& payload) : payload_(payload) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    json_[name] = json_of(value);
  }

  template <class T>
  void optional(const char* name, const T& value) {
    if (!is_left_out(value)) (*this)(name, value);
  }
  template <class T>
  void optional(const char* name, const T& value, const T& left_out) {
    if (value != left_out) (*this)(name, value);
  }

  template <std::integral T>
  void integer(const char* name, const T& value, std::int64_t, std::int64_t) {
    json_[name] = static_cast<std::int64_t>(value);
  }

  // Writes the alternative that a variant holds, under its name.
  template <class... T>
  void one_of(const char* const (&names)[sizeof...(T)], const std::variant<T...>& value) {
    json_[names[value.index()]] = std::visit([&](const auto& v) { return json_of(v); }, value);
  }

  Json take() { return std::move(json_); }

 private:
  template <class T>
  Json json_of(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return message_name(value);
    } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
      return value;
    } else {
      FieldWriter fields_of_it(payload_);
      fields(fields_of_it, value);
      return fields_of_it.take();
    }
  }
  Json json_of(double value) { return number(value); }
  Json json_of(const Array& value) { return payload_.array(value); }
  Json json_of(const std::vector<double>& value) { return payload_.numbers(value); }
  Json json_of(const std::pair<int, int>& value) { return {value.first, value.second}; }

  template <class T>
  Json json_of(const std::optional<T>& value) {
    return value ? json_of(*value) : Json();
  }

  template <class T>
  Json json_of(const std::vector<T>& values) {
    Json list = Json::array();
    for (const T& value : values) list.push_back(json_of(value));
    return list;
  }

  // Writes a size, or what computes it.
  template <class T>
  Json json_of(const std::variant<std::int64_t, T>& value) {
    return std::visit([&](const auto& v) { return json_of(v); }, value);
  }

  PayloadWriter& payload_;
  Json json_ = Json::object();
};

class FieldReader {
 public:
  static constexpr bool kReads = true;

  FieldReader(const Json& json, const PayloadReader& payload) : json_(json), payload_(payload) {}

  template <class T>
  void operator()(const char* name, T& value) {
    read(field(json_, name), value);
  }

  // Keeps the value if the member is left out.
  template <class T>
  void optional(const char* name, T& value) {
    if (const Json* found = optional_field(json_, name)) read(*found, value);
  }
  template <class T>
  void optional(const char* name, T& value, const T& left_out) {
    value = left_out;
    optional(name, value);
  }

  template <std::integral T>
  void integer(const char* name, T& value, std::int64_t low, std::int64_t high) {
    value = static_cast<T>(read_integer(field(json_, name), low, high));
  }

  template <std::size_t I = 0, class... T>
  void one_of(const char* const (&names)[sizeof...(T)], std::variant<T...>& value) {
    if (const Json* found = optional_field(json_, names[I]))
      read(*found, value.template emplace<I>());
    else if constexpr (I + 1 < sizeof...(T))
      one_of<I + 1>(names, value);
    else
      field(json_, names[0]);  // throws
  }

 private:
  template <class T>
  void read(const Json& json, T& value) {
    if constexpr (std::is_enum_v<T>) {
      const std::optional<T> known = message_named(read_text(json), T{});
      if (!known) throw BadMessage("unknown name: " + shown(json));
      value = *known;
    } else {
      FieldReader fields_of_it(json, payload_);
      fields(fields_of_it, value);
    }
  }
  void read(const Json& json, bool& value) { value = read_bool(json); }
  void read(const Json& json, int& value) { value = read_int(json); }
  void read(const Json& json, std::int64_t& value) { value = read_integer(json, 0, kMostInteger); }
  void read(const Json& json, std::uint64_t& value) { value = read_id(json); }
  void read(const Json& json, double& value) { value = read_number(json); }
  void read(const Json& json, std::string& value) { value = read_text(json); }
  void read(const Json& json, Array& value) { value = payload_.array(json); }
  void read(const Json& json, std::vector<double>& value) { value = payload_.numbers(json); }

  void read(const Json& json, std::pair<int, int>& value) {
    if (read_list(json).size() != 2) throw BadMessage("not a pair: " + header_text(json));
    value = {read_int(json[0]), read_int(json[1])};
  }

  template <class T>
  void read(const Json& json, std::optional<T>& value) {
    value.reset();
    if (!json.is_null()) read(json, value.emplace());
  }

  template <class T>
  void read(const Json& json, std::vector<T>& values) {
    values.clear();
    for (const Json& value : read_list(json)) read(value, values.emplace_back());
  }

  template <class T>
  void read(const Json& json, std::variant<std::int64_t, T>& value) {
    if (json.is_object())
      read(json, value.template emplace<T>());
    else
      read(json, value.template emplace<std::int64_t>());
  }

  const Json& json_;
  const PayloadReader& payload_;
};

}  // namespace distgrad
