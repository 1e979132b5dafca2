#include "scenario/json_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "scenario/json_syntax.h"
#include "scenario/printable.h"

namespace distgrad {

// Builds the tree. nlohmann's parser checks the grammar and decodes texts but gives no positions,
// so the builder follows it through the text token by token.
class JsonTreeBuilder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;

  JsonTreeBuilder(JsonTree& tree, std::vector<JsonProblem>& problems)
      : tree_(tree), problems_(problems) {}

  bool null() { return add_word(JsonKind::kNull, 4); }
  bool boolean(bool value) {
    return value ? add_word(JsonKind::kTrue, 4) : add_word(JsonKind::kFalse, 5);
  }
  bool number_integer(number_integer_t) { return add_number(); }
  bool number_unsigned(number_unsigned_t) { return add_number(); }
  bool number_float(number_float_t, const std::string&) { return add_number(); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON text has none
  bool string(std::string& value) {
    const std::size_t at = token();
    if (!add(JsonKind::kText, at)) return false;
    tree_.nodes_.back().text = keep(value);
    read_to_ = end_of_text(at);
    return true;
  }
  bool key(std::string& value) {
    key_offset_ = static_cast<std::uint32_t>(token());
    key_ = keep(value);
    read_to_ = end_of_text(key_offset_);
    after_key_ = true;
    return true;
  }
  bool start_object(std::size_t) { return open(JsonKind::kObject); }
  bool start_array(std::size_t) { return open(JsonKind::kList); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& exception) {
    SyntaxError error;
    error.text = tree_.source_;
    error.after = read_to_;
    if (!open_.empty()) {
      const JsonTree::Node& container = tree_.nodes_[open_.back().node];
      error.container = container.kind == JsonKind::kObject ? "object" : "list";
      error.container_line = tree_.position_of(container.offset).line;
      error.container_empty = container.children == 0;
    }
    error.after_key = after_key_;
    error.parser_message = exception.what();
    const SyntaxExplanation explanation = explain(error);
    report(explanation.offset, explanation.message);
    return false;
  }

 private:
  struct Open {
    std::uint32_t node;
    std::uint32_t last_child = JsonTree::kNone;
    // Maps keys to their places; objects only.
    std::unordered_map<std::string_view, std::uint32_t> keys;
  };

  std::size_t token() const { return next_token(tree_.source_, read_to_); }

  std::size_t end_of_text(std::size_t at) const {
    std::size_t i = at + 1;
    while (i < tree_.source_.size() && tree_.source_[i] != '"')
      i += tree_.source_[i] == '\\' ? 2 : 1;
    return i + 1;
  }

  std::uint32_t keep(std::string& text) {
    tree_.texts_.push_back(std::move(text));
    return static_cast<std::uint32_t>(tree_.texts_.size() - 1);
  }

  // Reports at the place being read, inside the innermost open container.
  void report(std::size_t offset, std::string message) {
    constexpr std::size_t kMost = 100;  // a hostile file may have many duplicates
    if (problems_.size() >= kMost) return;
    std::string pointer;
    if (!open_.empty()) pointer = JsonValue(&tree_, open_.back().node).pointer();
    if (after_key_) pointer += "/" + pointer_token(tree_.texts_[key_]);
    problems_.push_back({tree_.position_of(offset), std::move(pointer), std::move(message)});
  }

  bool add(JsonKind kind, std::size_t at) {
    if (tree_.nodes_.size() >= kMaxJsonValues) {
      report(at,
             fmt::format(
                 "the file has more than {} values; use \"random\" or \"expr\" for large inputs",
                 kMaxJsonValues));
      return false;
    }
    JsonTree::Node node;
    node.kind = kind;
    node.offset = static_cast<std::uint32_t>(at);
    const auto index = static_cast<std::uint32_t>(tree_.nodes_.size());
    const bool kept = open_.empty() || attach(node, index);
    tree_.nodes_.push_back(node);
    after_key_ = false;
    // A duplicate is not among the children.
    if (!kept) tree_.nodes_.back().parent = open_.back().node;
    return true;
  }

  // Links the node into the open container. Returns false for a duplicate key, which it reports.
  bool attach(JsonTree::Node& node, std::uint32_t index) {
    Open& open = open_.back();
    JsonTree::Node& parent = tree_.nodes_[open.node];
    node.parent = open.node;
    if (parent.kind == JsonKind::kObject) {
      node.key = key_;
      node.key_offset = key_offset_;
      const auto [first, is_new] = open.keys.try_emplace(tree_.texts_[key_], key_offset_);
      if (!is_new) {
        report(key_offset_,
               fmt::format("duplicate key {}; it stands in line {} already",
                           in_quotes(tree_.texts_[key_]), tree_.position_of(first->second).line));
        return false;
      }
    }
    node.place = parent.children++;
    if (open.last_child == JsonTree::kNone) {
      parent.first_child = index;
    } else {
      tree_.nodes_[open.last_child].next = index;
    }
    open.last_child = index;
    return true;
  }

  bool add_word(JsonKind kind, std::size_t length) {
    const std::size_t at = token();
    read_to_ = at + length;
    return add(kind, at);
  }

  bool add_number() {
    const std::size_t at = token();
    read_to_ = end_of_number(tree_.source_, at);
    return add(JsonKind::kNumber, at);
  }

  bool open(JsonKind kind) {
    const std::size_t at = token();
    if (open_.size() >= kMaxJsonDepth) {
      problems_.push_back(
          {tree_.position_of(at), "", fmt::format("nested more than {} deep", kMaxJsonDepth)});
      return false;
    }
    if (!add(kind, at)) return false;
    read_to_ = at + 1;
    open_.push_back({static_cast<std::uint32_t>(tree_.nodes_.size() - 1), JsonTree::kNone, {}});
    return true;
  }

  bool close() {
    read_to_ = token() + 1;
    open_.pop_back();
    return true;
  }

  JsonTree& tree_;
  std::vector<JsonProblem>& problems_;
  std::vector<Open> open_;
  std::size_t read_to_ = 0;  // end of the last good token
  std::uint32_t key_ = 0;
  std::uint32_t key_offset_ = 0;
  bool after_key_ = false;
};

JsonTree::JsonTree(std::string_view text, std::vector<JsonProblem>& problems) : source_(text) {
  line_starts_.reserve(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1);
  line_starts_.push_back(0);
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') line_starts_.push_back(static_cast<std::uint32_t>(i + 1));
  // nlohmann takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const bool wide = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") || nul <= 1;
    problems.push_back({position_of(nul), "",
                        wide ? "the file looks like UTF-16; save it as UTF-8"
                             : "the file holds a NUL byte; it is not a JSON text"});
    return;
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) {
    problems.push_back({position_of(0), "",
                        "the file begins with a byte order mark; save it as UTF-8 without BOM"});
    return;
  }
  JsonTreeBuilder builder(*this, problems);
  complete_ = nlohmann::json::sax_parse(text, &builder);
}

std::optional<JsonValue> JsonTree::root() const {
  if (!complete_ || nodes_.empty()) return std::nullopt;
  return JsonValue(this, 0);
}

JsonValue JsonTree::nearest(std::string_view pointer) const {
  JsonValue value(this, 0);
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view token = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(token.size());
    bool found = false;
    for (const JsonValue& child : value.children()) {
      const std::string name = value.is_object() ? pointer_token(child.key())
                                                 : std::to_string(nodes_[child.index_].place);
      if (name != token) continue;
      value = child;
      found = true;
      break;
    }
    if (!found) break;
  }
  return value;
}

SourcePosition JsonTree::position_of(std::size_t offset) const {
  const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
  const auto line = after - line_starts_.begin();
  return {static_cast<int>(line), static_cast<int>(offset - *(after - 1)) + 1};
}

JsonKind JsonValue::kind() const { return tree_->nodes_[index_].kind; }
const std::string& JsonValue::text() const { return tree_->texts_.at(tree_->nodes_[index_].text); }
const std::string& JsonValue::key() const { return tree_->texts_.at(tree_->nodes_[index_].key); }
bool JsonValue::is_member() const { return tree_->nodes_[index_].key != JsonTree::kNone; }
std::size_t JsonValue::size() const { return tree_->nodes_[index_].children; }

std::string_view JsonValue::written() const {
  const std::size_t at = tree_->nodes_[index_].offset;
  return tree_->source_.substr(at, end_of_number(tree_->source_, at) - at);
}

double JsonValue::number() const {
  // It stays 0 if the number is too small for float64; the parser refused those too large.
  double value = 0;
  const std::string_view text = written();
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::optional<std::int64_t> JsonValue::integer() const {
  std::int64_t value = 0;
  const std::string_view text = written();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<JsonValue> JsonValue::children() const {
  std::vector<JsonValue> result;
  result.reserve(size());
  for (std::uint32_t i = tree_->nodes_[index_].first_child; i != JsonTree::kNone;
       i = tree_->nodes_[i].next)
    result.push_back(JsonValue(tree_, i));
  return result;
}

std::optional<JsonValue> JsonValue::member(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (std::uint32_t i = tree_->nodes_[index_].first_child; i != JsonTree::kNone;
       i = tree_->nodes_[i].next)
    if (JsonValue(tree_, i).key() == key) return JsonValue(tree_, i);
  return std::nullopt;
}

std::string JsonValue::pointer() const {
  std::string pointer;
  for (std::uint32_t i = index_; tree_->nodes_[i].parent != JsonTree::kNone;
       i = tree_->nodes_[i].parent) {
    const JsonValue value(tree_, i);
    pointer.insert(0, "/" + (value.is_member() ? pointer_token(value.key())
                                               : std::to_string(tree_->nodes_[i].place)));
  }
  return pointer;
}

SourcePosition JsonValue::position() const {
  return tree_->position_of(tree_->nodes_[index_].offset);
}
SourcePosition JsonValue::key_position() const {
  return is_member() ? tree_->position_of(tree_->nodes_[index_].key_offset) : position();
}

std::string pointer_token(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

}  // namespace distgrad
