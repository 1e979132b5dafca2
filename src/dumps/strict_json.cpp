#include "dumps/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

// Builds the document itself: nlohmann's own parser of ordered objects compares every key with all
// before it, which takes minutes for a model of many parameters, and silently keeps the last of
// several equal keys.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& where) : where_(where) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (name.size() > kLongestName)
      throw UserError(
          fmt::format("{}: a name of {} bytes, more than {}", where_, name.size(), kLongestName));
    Open& object = open_.back();
    if (is_there(object, name))
      throw UserError(fmt::format("{}: \"{}\" is there twice", where_, for_terminal(name)));
    object.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    throw UserError(fmt::format("{}: not JSON: {}", where_, reason(e.what())));
  }

 private:
  static constexpr std::size_t kDeepest = 64;
  static constexpr std::size_t kLongestName = 4096;

  // Holds an object or list that has not ended; it goes into the one around it when it has.
  struct Open {
    Json value;
    std::unordered_set<std::string> keys;  // of an object with many keys
    std::string key;
  };

  static bool is_there(Open& object, const std::string& name) {
    constexpr std::size_t kFew = 16;
    const auto& members = object.value.get_ref<const Json::object_t&>();
    if (members.size() < kFew)
      return std::any_of(members.begin(), members.end(),
                         [&](const auto& member) { return member.first == name; });
    if (object.keys.empty())
      for (const auto& member : members) object.keys.insert(member.first);
    return !object.keys.insert(name).second;
  }

  // Removes nlohmann's own "[json.exception.parse_error.101] ".
  static std::string reason(const std::string& what) {
    const std::size_t end = what.find("] ");
    const std::string text = end == std::string::npos ? what : what.substr(end + 2);
    return for_terminal(text.substr(0, 160));
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      Open& object = open_.back();
      object.value.get_ref<Json::object_t&>().push_back({std::move(object.key), std::move(value)});
    }
    return true;
  }

  bool open(Json value) {
    if (open_.size() == kDeepest)
      throw UserError(fmt::format("{}: nested deeper than {}", where_, kDeepest));
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  const std::string& where_;
  Json root_;
  std::vector<Open> open_;
};

}  // namespace

Json parse_strict_json(std::string_view text, const std::string& where) {
  Builder builder(where);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception& e) {
    throw UserError(fmt::format("{}: not JSON: {}", where, for_terminal(e.what())));
  }
  return builder.take();
}

}  // namespace distgrad::dumps
