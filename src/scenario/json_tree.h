// Holds JSON with everything that a message about it needs: the place of each value and key, its
// JSON pointer, numbers as written, members in the file's order, duplicate keys. It is one flat
// arena of nodes, so a hostile file can neither overflow the stack nor cost much more memory than
// its bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

inline constexpr std::size_t kMaxFileBytes = 64u << 20;
inline constexpr std::size_t kMaxJsonDepth = 200;
inline constexpr std::size_t kMaxJsonValues = 4'000'000;

enum class JsonKind : std::uint8_t { kNull, kTrue, kFalse, kNumber, kText, kList, kObject };

class JsonTree;

// Refers to one value of a tree, and is valid as long as the tree is.
class JsonValue {
 public:
  JsonKind kind() const;
  bool is_object() const { return kind() == JsonKind::kObject; }
  bool is_list() const { return kind() == JsonKind::kList; }
  bool is_text() const { return kind() == JsonKind::kText; }
  bool is_number() const { return kind() == JsonKind::kNumber; }

  const std::string& text() const;   // kText
  std::string_view written() const;  // kNumber: as written in the file
  double number() const;             // kNumber: the nearest float64
  // For a kNumber, returns its value if it is written without '.' and exponent and fits.
  std::optional<std::int64_t> integer() const;

  std::size_t size() const;  // of items or members
  std::vector<JsonValue> children() const;
  std::optional<JsonValue> member(std::string_view key) const;
  const std::string& key() const;  // of a value that is an object's member
  bool is_member() const;

  std::string pointer() const;
  SourcePosition position() const;
  SourcePosition key_position() const;  // of the member's key; the value's position if it is no
                                        // member

 private:
  friend class JsonTree;
  friend class JsonTreeBuilder;
  JsonValue(const JsonTree* tree, std::uint32_t index) : tree_(tree), index_(index) {}

  const JsonTree* tree_;
  std::uint32_t index_;
};

struct JsonProblem {
  SourcePosition position;
  std::string pointer;
  std::string message;
};

class JsonTree {
 public:
  // Reads `text`, which must outlive the tree. root() has a value unless there is a syntax error.
  // Duplicate keys are problems, too, but the tree then has the first of them.
  JsonTree(std::string_view text, std::vector<JsonProblem>& problems);
  JsonTree(const JsonTree&) = delete;
  JsonTree& operator=(const JsonTree&) = delete;

  std::optional<JsonValue> root() const;
  // Returns the value at a pointer, or the nearest one around it.
  JsonValue nearest(std::string_view pointer) const;
  SourcePosition position_of(std::size_t offset) const;

 private:
  friend class JsonValue;
  friend class JsonTreeBuilder;

  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Node {
    JsonKind kind{};
    std::uint32_t offset = 0;  // of the first byte
    std::uint32_t parent = kNone;
    std::uint32_t place = 0;  // among the parent's children
    std::uint32_t first_child = kNone;
    std::uint32_t next = kNone;
    std::uint32_t children = 0;
    std::uint32_t text = kNone;  // into texts_
    std::uint32_t key = kNone;   // into texts_
    std::uint32_t key_offset = 0;
  };

  std::string_view source_;
  std::vector<Node> nodes_;
  std::deque<std::string> texts_;  // a deque: the builder keeps views of them
  std::vector<std::uint32_t> line_starts_;
  bool complete_ = false;
};

// Writes a reference token of a JSON pointer: "a/b" becomes "a~1b".
std::string pointer_token(std::string_view key);

}  // namespace distgrad
