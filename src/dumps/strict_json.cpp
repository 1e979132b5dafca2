#include "dumps/strict_json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/error.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

// nlohmann keeps the last of several equal keys and says nothing.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& where) : where_(where) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kDeepest)
      throw UserError(fmt::format("{}: nested deeper than {}", where_, kDeepest));
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second)
        throw UserError(fmt::format("{}: \"{}\" is there twice", where_, for_terminal(key)));
    }
    return true;
  }

 private:
  static constexpr int kDeepest = 64;
  const std::string& where_;
  std::vector<std::set<std::string>> keys_;
};

// Without nlohmann's own "[json.exception.parse_error.101] ".
std::string reason(const std::string& what) {
  const std::size_t end = what.find("] ");
  const std::string text = end == std::string::npos ? what : what.substr(end + 2);
  return for_terminal(text.substr(0, 160));
}

}  // namespace

Json parse_strict_json(std::string_view text, const std::string& where) {
  KeyGuard guard(where);
  try {
    return Json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const Json::exception& e) {
    throw UserError(fmt::format("{}: not JSON: {}", where, reason(e.what())));
  }
}

}  // namespace distgrad::dumps
