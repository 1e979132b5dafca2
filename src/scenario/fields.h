// Reads single JSON values as what they should be; what they are instead becomes a problem at their
// place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/array.h"
#include "model/report.h"
#include "scenario/json_tree.h"

namespace distgrad {

class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}

  void at(const JsonValue& value, std::string message);
  void at_key(const JsonValue& member, std::string message);
  // A key that the object lacks: reported at the object, with the pointer that the key would have.
  void missing(const JsonValue& object, std::string_view key, std::string message);
  // The key was given, misspelt, and that was reported: it is not missing as well.
  void was_misspelt(const JsonValue& object, std::string_view key);
  void add(SourcePosition position, std::string pointer, std::string message);

  bool empty() const { return found_.empty(); }
  bool full() const { return found_.size() >= kMost; }  // then loops over a hostile file may end
  std::vector<InvalidFile> take();  // in the file's order, the first of each place, at most 20

 private:
  static constexpr std::size_t kMost = 100;
  std::string file_;
  std::vector<InvalidFile> found_;
  std::set<std::string> misspelt_;  // pointers
};

// "a list", "the number 3", "the text \"x\"": what a value is, for messages.
std::string description(const JsonValue&);

// "sum, mean or replicated", each in double quotes.
std::string choices(std::span<const std::string> names);

// "; did you mean \"NAME\"?" or nothing. Not searched among very many names, which only a hostile
// file has.
std::string name_hint(std::string_view word, std::span<const std::string> known);
// Or else "; " with `otherwise` and the names themselves, as far as they are few.
std::string name_hint_or_choices(std::string_view word, std::span<const std::string> known,
                                 std::string_view otherwise);

// Each of these gives nothing, and a problem, where the value is something else.
std::optional<std::int64_t> read_integer(const JsonValue&, std::int64_t low, std::int64_t high,
                                         Problems&);
std::optional<double> read_number(const JsonValue&, Problems&);
std::optional<bool> read_bool(const JsonValue&, Problems&);
std::optional<std::string> read_text(const JsonValue&, Problems&);
// One of the names; else "did you mean", or all of them. `what` as in "unknown WHAT".
std::optional<std::string> read_name_among(const JsonValue&, std::string_view what,
                                           std::span<const std::string> names, Problems&);
bool read_object(const JsonValue&, std::string_view expected, Problems&);
bool read_list(const JsonValue&, std::string_view expected, Problems&);

// Every key of the object is one of these; true if so.
bool check_keys(const JsonValue& object, std::span<const std::string> known, Problems&);
bool check_keys(const JsonValue& object, std::initializer_list<std::string_view> known, Problems&);

// A number, "nan", "inf", "-inf", or lists of these that are not ragged.
std::optional<Array> read_array(const JsonValue&, Problems&);
// "nan", "inf", "-inf".
std::optional<double> non_finite_word(const JsonValue&);

std::string shape_text(const Shape&);  // [2, 3]

template <class Names>
std::vector<std::string> strings_of(const Names& names) {
  return std::vector<std::string>(std::begin(names), std::end(names));
}

}  // namespace distgrad
