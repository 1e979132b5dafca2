// Reads single JSON values as what they should be. A value that is something else becomes a problem
// at its place.
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
  // Reports a key that the object lacks, at the object, with the pointer that the key would have.
  void missing(const JsonValue& object, std::string_view key, std::string message);
  // Notes that the key was given, misspelt, and reported, so that it is not reported as missing,
  // too.
  void was_misspelt(const JsonValue& object, std::string_view key);
  void add(SourcePosition position, std::string pointer, std::string message);

  bool empty() const { return found_.empty(); }
  bool full() const { return found_.size() >= kMost; }  // loops over a hostile file may then end
  std::vector<InvalidFile> take();  // in the file's order, the first problem of each place, at most
                                    // 20

 private:
  static constexpr std::size_t kMost = 100;
  std::string file_;
  std::vector<InvalidFile> found_;
  std::set<std::string> misspelt_;  // pointers
};

// Says what a value is, for messages: "a list", "the number 3", "the text \"x\"".
std::string description(const JsonValue&);

// Returns "sum, mean or replicated", each in double quotes.
std::string choices(std::span<const std::string> names);

// Returns "; did you mean \"NAME\"?" or "". It does not search very many names, which only a
// hostile file has.
std::string name_hint(std::string_view word, std::span<const std::string> known);
// Returns that or else "; " with `otherwise` and the names themselves, if they are few.
std::string name_hint_or_choices(std::string_view word, std::span<const std::string> known,
                                 std::string_view otherwise);

// Each of these returns nothing, and adds a problem, if the value is something else.
std::optional<std::int64_t> read_integer(const JsonValue&, std::int64_t low, std::int64_t high,
                                         Problems&);
std::optional<double> read_number(const JsonValue&, Problems&);
std::optional<bool> read_bool(const JsonValue&, Problems&);
std::optional<std::string> read_text(const JsonValue&, Problems&);
// Returns one of the names, else adds "did you mean", or all names. `what` is as in "unknown WHAT".
std::optional<std::string> read_name_among(const JsonValue&, std::string_view what,
                                           std::span<const std::string> names, Problems&);
bool read_object(const JsonValue&, std::string_view expected, Problems&);
bool read_list(const JsonValue&, std::string_view expected, Problems&);

// Return true if every key of the object is one of these; others become problems.
bool check_keys(const JsonValue& object, std::span<const std::string> known, Problems&);
bool check_keys(const JsonValue& object, std::initializer_list<std::string_view> known, Problems&);

// Reads a number, "nan", "inf", "-inf", or lists of these that are not ragged.
std::optional<Array> read_array(const JsonValue&, Problems&);
// Reads "nan", "inf" or "-inf".
std::optional<double> non_finite_word(const JsonValue&);

std::string shape_text(const Shape&);  // [2, 3]

template <class Names>
std::vector<std::string> strings_of(const Names& names) {
  return std::vector<std::string>(std::begin(names), std::end(names));
}

}  // namespace distgrad
